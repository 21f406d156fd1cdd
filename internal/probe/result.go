// Package probe is Parity's probe on both of its sides: what the small static program parity-probe does and prints, and how the
// one who ran it somewhere (on the host, in the control VM, in the target) passes arguments and reads the answer.
//
// Each command of the program prints one JSON line. All fields are always there: a text is empty and a number 0 where there
// is nothing to say. The program is copied into guests that may run under a slow emulator, so what it reaches in this package
// keeps off net, fmt and reflection, and the lines are encoded by hand; only the Parse functions use encoding/json, and the
// linker leaves them out of the program.
package probe

// Program is the program's name, and what Version.Program says.
const Program = "parity-probe"

// maxBytes bounds what the program reads: of an answer, header included, and of a marker.
const maxBytes = 64 << 10

// Outcome is what became of a TCP probe. No outcome says whether something was right: that is for the caller to judge.
type Outcome string

// The outcomes of a TCP probe. "Established" means that the peer acknowledged the handshake.
const (
	// OutcomeBody: a 200 with a body. Whether it is the endpoint's body is for the caller to judge.
	OutcomeBody Outcome = "body"
	// OutcomeRefused: ECONNREFUSED while connecting.
	OutcomeRefused Outcome = "refused"
	// OutcomeResetConnecting: ECONNRESET while connecting, and the peer had not acknowledged the handshake.
	OutcomeResetConnecting Outcome = "reset-connecting"
	// OutcomeReset: ECONNRESET or EPIPE after the connection was established, also where the reset came so soon after the
	// handshake that the kernel reported it as the connect's own error.
	OutcomeReset Outcome = "reset"
	// OutcomeTimeoutConnecting: the deadline passed, or the kernel gave up, while connecting.
	OutcomeTimeoutConnecting Outcome = "timeout-connecting"
	// OutcomeTimeout: the deadline passed, or the kernel gave up, after the connection was established.
	OutcomeTimeout Outcome = "timeout"
	// OutcomeNoRoute: ENETUNREACH, EHOSTUNREACH, ENETDOWN, EHOSTDOWN or ENONET, at whatever stage.
	OutcomeNoRoute Outcome = "no-route"
	// OutcomeHTTP: any other HTTP answer, such as a proxy's 403, or a 200 without a body.
	OutcomeHTTP Outcome = "http"
	// OutcomeEOF: the connection was closed without one byte of an answer.
	OutcomeEOF Outcome = "eof"
	// OutcomeGarbage: an answer that is not HTTP, or ends before its header does.
	OutcomeGarbage Outcome = "garbage"
	// OutcomeError: anything else; Errno and Detail say what.
	OutcomeError Outcome = "error"
)

// Outcomes lists every outcome.
var Outcomes = []Outcome{
	OutcomeBody, OutcomeRefused, OutcomeResetConnecting, OutcomeReset, OutcomeTimeoutConnecting, OutcomeTimeout,
	OutcomeNoRoute, OutcomeHTTP, OutcomeEOF, OutcomeGarbage, OutcomeError,
}

// Stage is how far a TCP probe came: what it did last.
type Stage string

// The stages of a TCP probe, in order.
const (
	StageConnect Stage = "connect"
	StageWrite   Stage = "write"
	StageRead    Stage = "read"
)

// Version is what `parity-probe --version` reports.
type Version struct {
	Program string `json:"program"`
	Version string `json:"version"`
	Arch    string `json:"arch"` // as in GOARCH
}

// TCP is what `parity-probe tcp` reports.
type TCP struct {
	Outcome       Outcome `json:"outcome"`
	Stage         Stage   `json:"stage"`
	Errno         string  `json:"errno"`     // symbolic, such as ECONNREFUSED
	Status        int     `json:"status"`    // the HTTP status, 0 when there was none
	Body          string  `json:"body"`      // of an HTTP answer; the whole answer when it is garbage
	Detail        string  `json:"detail"`    // what went wrong, in words
	LocalAddr     string  `json:"localAddr"` // ip:port, when the connection was established
	ElapsedMillis int64   `json:"elapsedMillis"`
}

// BootID is what `parity-probe boot-id` reports of the kernel it runs on.
type BootID struct {
	BootID        string  `json:"bootId"` // new at each boot
	UptimeSeconds float64 `json:"uptimeSeconds"`
	Hostname      string  `json:"hostname"`
}

// Marker is what `parity-probe marker write` and `marker read` report of a file and of the mount it is on. Of a file that does
// not exist, the mount is the one of the nearest folder that does.
type Marker struct {
	Path       string `json:"path"`
	Exists     bool   `json:"exists"`
	Value      string `json:"value"` // the file's content, up to 64 KiB
	MountPoint string `json:"mountPoint"`
	FSType     string `json:"fsType"`
	RootDevice bool   `json:"rootDevice"` // the mount is the root file system's own: its mount point is /
}

// Line is the line that the program prints, with its line feed.
func (v Version) Line() []byte {
	var o object
	o.text("program", v.Program)
	o.text("version", v.Version)
	o.text("arch", v.Arch)
	return o.line()
}

// Line is the line that the program prints, with its line feed.
func (t TCP) Line() []byte {
	var o object
	o.text("outcome", string(t.Outcome))
	o.text("stage", string(t.Stage))
	o.text("errno", t.Errno)
	o.number("status", int64(t.Status))
	o.text("body", t.Body)
	o.text("detail", t.Detail)
	o.text("localAddr", t.LocalAddr)
	o.number("elapsedMillis", t.ElapsedMillis)
	return o.line()
}

// Line is the line that the program prints, with its line feed.
func (b BootID) Line() []byte {
	var o object
	o.text("bootId", b.BootID)
	o.decimal("uptimeSeconds", b.UptimeSeconds)
	o.text("hostname", b.Hostname)
	return o.line()
}

// Line is the line that the program prints, with its line feed.
func (m Marker) Line() []byte {
	var o object
	o.text("path", m.Path)
	o.boolean("exists", m.Exists)
	o.text("value", m.Value)
	o.text("mountPoint", m.MountPoint)
	o.text("fsType", m.FSType)
	o.boolean("rootDevice", m.RootDevice)
	return o.line()
}
