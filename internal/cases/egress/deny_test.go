package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/fixtures/link"
	"dagger/parity/fixtures/ways"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// The tests run in network and mount namespaces of their own, with an empty /tmp: that is where a case puts its probe program.
func TestMain(m *testing.M) {
	if os.Getenv("PARITY_TEST_APART") == "" {
		args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool {
			return strings.HasPrefix(a, "-test.testlogfile=") // in the /tmp that the child does not have
		})
		// The child does not see a checkout that is below /tmp: the programs are built here.
		programs, err := buildPrograms()
		if err != nil {
			fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
			os.Exit(1)
		}
		child := exec.Command("/proc/self/exe", args...)
		child.Env = append(os.Environ(), "PARITY_TEST_APART="+programs)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err = child.Run()
		_ = os.RemoveAll(programs)
		if err != nil {
			fmt.Fprintln(os.Stderr, "in namespaces of their own, the tests:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := apart(os.Getenv("PARITY_TEST_APART")); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests' namespaces:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func buildPrograms() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "programs-"); err != nil {
		return "", err
	}
	if err := labtest.Build(dir, "dagger/parity/cmd/parity-probe", "dagger/parity/cmd/parity-agent"); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// apart puts an empty /tmp in the place of the machine's, with only the folder of the programs.
func apart(programs string) error {
	folder, err := os.Open(programs)
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"); err != nil {
		return err
	}
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	same := fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
	if err := unix.Mount(same, programs, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// place is a lab in small: a real endpoint, and two "guests" that are entered over real SSH and are processes of this machine. The
// target's probe program can be told to misbehave.
type place struct {
	endpoint *endpoint.Endpoint
	programs string // the folder with parity-probe and parity-agent
	dir      string // the folder of what the test makes
	flag     string // a file by which the target's probe program tells the test to close the endpoint
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{programs: os.Getenv("PARITY_TEST_APART"), dir: t.TempDir()}
	p.flag = filepath.Join(p.dir, "close-the-endpoint")
	return p
}

func (p *place) probe() string { return filepath.Join(p.programs, "parity-probe") }

// guestProbe is where the guests have their probe program.
const guestProbe = "/tmp/parity-probe"

// enter opens a session to a guest. fake, if any, is a shell script in place of its probe program's command tcp, where $REAL is the
// real program and "$@" its arguments, and sweep one in place of its command sweep.
func (p *place) enter(t *testing.T, name, fake, sweep string) *workspace.Guest {
	t.Helper()
	program := p.probe()
	if fake != "" {
		program = filepath.Join(p.dir, name+"-probe")
		script := "#!/bin/bash\nREAL=" + p.probe() + "\nif [ \"$1\" = sweep ]; then\n" + sweep + "\nexit; fi\n[ \"$1\" = tcp ] || exec $REAL \"$@\"\nADDRESS=$3; HOST=${3%:*}; PORT=${3##*:}\n" + fake + "\n"
		if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(guestProbe, nil, 0o755); err != nil { // what the mount goes over
		t.Fatal(err)
	}
	cli := filepath.Join(p.dir, name+"-cli")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s %s && exec %s ssh --stdio'\n",
		program, guestProbe, filepath.Join(p.programs, "parity-agent"))
	if err := os.WriteFile(cli, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	home, err := subject.NewHome(subject.Home{Dir: filepath.Join(t.TempDir(), "home"), Path: os.Getenv("PATH")})
	if err != nil {
		t.Fatal(err)
	}
	session, err := subject.CLI{Argv: []string{cli}, Home: home}.Dial(t.Context(), name, "root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return &workspace.Guest{Session: session, Probe: guestProbe}
}

// newWays starts the listeners of the other ways out in the tests' namespaces.
func newWays(t *testing.T) *ways.Ways {
	t.Helper()
	l, err := link.New(link.Options{Name: "test", Others: ways.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w, err := ways.Start(l.Address.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// deniedSweep is a shell script in place of the probe program's command sweep in a guest whose egress is denied.
const deniedSweep = `printf '{"tries":['; SEP=
for A in "$@"; do
	case $A in *=tcp:*) OUTCOME=refused;; *=take:*) OUTCOME=timeout;; *=*:*) OUTCOME=silence;; *) continue;; esac
	printf '%s{"name":"%s","outcome":"%s","errno":"","body":"","detail":"","elapsedMillis":1}' "$SEP" "${A%%=*}" $OUTCOME
	SEP=,
done
echo ']}'`

// windowChecks are the checks of the denied window of one phase, in the catalogue's order.
func windowChecks(t *testing.T) catalogue.Case {
	t.Helper()
	plan, ok := catalogue.New(nil).ByID("egress/builtin/deny")
	if !ok {
		t.Fatal("the catalogue has no egress/builtin/deny")
	}
	first := slices.IndexFunc(plan.Checks, func(c catalogue.Check) bool { return c.Name == "endpoint-before" })
	last := slices.IndexFunc(plan.Checks, func(c catalogue.Check) bool { return c.Name == "sweep" })
	plan.Checks = plan.Checks[first : last+1]
	return plan
}

// deniedWindow goes through one denied window and gives what was found.
func (p *place) deniedWindow(t *testing.T, fake, sweep string) report.Case {
	t.Helper()
	var err error
	if p.endpoint, err = endpoint.Start(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	defer p.endpoint.Close()
	os.Remove(p.flag)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(p.flag); err == nil {
				p.endpoint.Close()
				os.Remove(p.flag)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	s := &scenario{
		Workspace: &workspace.Workspace{
			Recorder: cases.NewRecorder(ctx, windowChecks(t), "run", func(report.Event) {}), Env: cases.Env{Tools: cases.Tools{Probe: p.probe()}}, Ctx: ctx,
		},
		deny:     true,
		endpoint: p.endpoint, ways: newWays(t), control: p.enter(t, "control", "", ""), expected: map[string]bool{}, swept: map[string]bool{}, forbidden: map[string]bool{},
	}
	s.denied(catalogue.Created, p.enter(t, "target", fake, sweep))
	return s.Finish()
}

// broken lists the checks that did not pass and were reached, with their verdicts.
func broken(c report.Case) string {
	var list []string
	for _, k := range c.Checks {
		if k.Broke() {
			list = append(list, k.Name+": "+string(k.Verdict))
		}
	}
	return strings.Join(append(list, c.Problems...), ", ")
}

const saysRefused = `echo '{"outcome":"refused","stage":"connect","errno":"ECONNREFUSED","status":0,"body":"","detail":"","localAddr":"","elapsedMillis":1}'`

func says(outcome, stage, errno string, status int, body string) string {
	return fmt.Sprintf(`echo '{"outcome":%q,"stage":%q,"errno":%q,"status":%d,"body":%q,"detail":"","localAddr":"","elapsedMillis":1}'`,
		outcome, stage, errno, status, body)
}

// Each way in which a denied probe can go, and the checks that must break, and no others.
func TestDeniedWindow(t *testing.T) {
	p := newPlace(t)
	closeEndpoint := "touch " + p.flag + "; while [ -e " + p.flag + " ]; do sleep 0.01; done\n"
	for _, test := range []struct{ name, fake, want string }{
		{"refused", saysRefused, ""},
		{"reset while connecting", says("reset-connecting", "connect", "ECONNRESET", 0, ""), ""},
		{"reset after the handshake", says("reset", "read", "ECONNRESET", 0, ""), ""},

		{"not denied at all", `exec $REAL "$@"`, "no-leak: fail"},
		{"refused though the request arrived", `$REAL "$@" >/dev/null; ` + saysRefused, "no-leak: fail"},
		{"refused though a connection arrived", `exec 3<>/dev/tcp/$HOST/$PORT; exec 3>&-; ` + saysRefused, "no-leak: fail"},
		{"reset though a connection arrived", `exec 3<>/dev/tcp/$HOST/$PORT; exec 3>&-; ` + says("reset", "read", "ECONNRESET", 0, ""), "no-leak: fail"},

		{"dropped while connecting", says("timeout-connecting", "connect", "", 0, ""), "deny: fail"},
		{"stalled", says("timeout", "read", "", 0, ""), "deny: fail"},
		{"no route", says("no-route", "connect", "ENETUNREACH", 0, ""), "deny: fail"},
		{"a proxy's 403", says("http", "read", "", 403, "denied by proxy"), "deny: fail"},
		{"another server's 200", says("body", "read", "", 200, "not the endpoint"), "deny: fail"},
		{"end of file", says("eof", "read", "", 0, ""), "deny: fail"},
		{"another protocol", says("garbage", "read", "", 0, "SSH-2.0"), "deny: fail"},
		{"any other error", says("error", "connect", "EPERM", 0, ""), "deny: fail"},

		{"the endpoint dies, and refuses", closeEndpoint + `exec $REAL "$@"`, "control-probe-after: inconclusive"},
		{"the endpoint dies after a refusal", closeEndpoint + saysRefused, "control-probe-after: inconclusive"},
		{"the probe program is gone", `exit 127`, "deny: inconclusive"},
		{"the probe program prints garbage", `echo refused`, "deny: inconclusive"},
		{"the probe program prints nothing", `exit 0`, "deny: inconclusive"},
		{"the probe program has an unknown outcome", says("denied", "connect", "", 0, ""), "deny: inconclusive"},
		{"the SSH session dies", `kill -KILL $(ps -o ppid= -p $PPID); sleep 5`, "ssh-after: inconclusive"},
		{"the SSH session dies after a leak", `$REAL "$@" >/dev/null; kill -KILL $(ps -o ppid= -p $PPID); sleep 5`,
			"ssh-after: inconclusive, no-leak: fail"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := p.deniedWindow(t, test.fake, deniedSweep)
			if got := broken(c); got != test.want {
				for _, k := range c.Checks {
					t.Logf("%-22s %-12s %s", k.Name, k.Verdict, k.Seen)
				}
				t.Errorf("broken is %q, want %q", got, test.want)
			}
			if test.want == "" && c.Verdict != report.Pass {
				t.Errorf("the verdict is %s", c.Verdict)
			}
		})
	}
}

// Each way in which a denied sweep can go, and the checks that must break, and no others.
func TestDeniedSweep(t *testing.T) {
	p := newPlace(t)
	change := func(from, to string) string { return "(" + deniedSweep + ") | sed 's/" + from + "/" + to + "/'" }
	const one, dns = `"tcp-443","outcome":"refused"`, `"dns","outcome":"silence"`
	for _, test := range []struct{ name, sweep, want string }{
		{"denied", deniedSweep, ""},
		{"not denied at all", `exec $REAL "$@"`, "no-leak: fail"},
		{"silent, and it arrived", `$REAL "$@" >/dev/null; ` + deniedSweep, "no-leak: fail"},
		{"refused, and a connection arrived", `exec 3<>/dev/tcp/203.0.113.10/443; exec 3>&-; ` + deniedSweep, "no-leak: fail"},
		{"reset", change(one, `"tcp-443","outcome":"reset"`), ""},
		{"the name does not exist", change(dns, `"dns","outcome":"no-name"`), ""},
		{"port 53 is taken, and closed", change(`"tcp-53","outcome":"timeout"`, `"tcp-53","outcome":"eof"`), ""},
		{"port 53 answers", change(`"tcp-53","outcome":"timeout"`, `"tcp-53","outcome":"garbage"`), "sweep: fail"},
		{"port 443 is taken", change(one, `"tcp-443","outcome":"timeout"`), "sweep: fail"},
		{"dropped", change(one, `"tcp-443","outcome":"timeout-connecting"`), "sweep: fail"},
		{"no route", change(one, `"tcp-443","outcome":"no-route"`), "sweep: fail"},
		{"a proxy's answer", change(one, `"tcp-443","outcome":"http"`), "sweep: fail"},
		{"silent TCP", change(one, `"tcp-443","outcome":"silence"`), "sweep: fail"},
		{"another's answer", change(dns, `"dns","outcome":"body"`), "sweep: fail"},
		{"a way is missing", `shift 2; set -- "${@:1:$#-1}"; ` + deniedSweep, "sweep: inconclusive"},
		{"the probe program prints nothing", "exit 0", "sweep: inconclusive"},
		{"the SSH session dies", `kill -KILL $(ps -o ppid= -p $PPID); sleep 5`, "ssh-after: inconclusive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := p.deniedWindow(t, saysRefused, test.sweep)
			if got := broken(c); got != test.want {
				for _, k := range c.Checks {
					t.Logf("%-22s %-12s %s", k.Name, k.Verdict, k.Seen)
				}
				t.Errorf("broken is %q, want %q", got, test.want)
			}
		})
	}
}

func TestStrangersConnectionMakesTheWindowInconclusive(t *testing.T) {
	p := newPlace(t)
	c := p.deniedWindow(t, `exec 3<>/dev/tcp/$HOST/$PORT; printf 'GET /probe/stranger HTTP/1.0\r\n\r\n' >&3; cat <&3 >/dev/null; `+saysRefused, deniedSweep)
	if got := broken(c); got != "no-leak: inconclusive" {
		t.Errorf("broken is %q", got)
	}
}
