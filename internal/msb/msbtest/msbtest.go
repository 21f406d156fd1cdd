// Package msbtest holds an msb executable to what Parity relies on. The real msb and the stand-in for it are held to the same
// assertions, so that the stand-in cannot drift.
package msbtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
)

// NewClient gives a client of the msb executable at path, with an empty MSB_HOME on the lab's scratch space. At the test's end its
// sandboxes are removed.
func NewClient(t testing.TB, path string) *msb.Client {
	t.Helper()
	scratch := os.Getenv(lab.EnvScratch)
	if scratch == "" {
		t.Fatal("this test needs a lab: run it with `parity lab -- ...`, as scripts/test does")
	}
	home, err := os.MkdirTemp(scratch, "m")
	if err != nil {
		t.Fatal(err)
	}
	c := &msb.Client{Path: path, Home: home}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		list, err := c.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, box := range list {
			if err := c.Remove(ctx, box.Name); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Run makes all assertions as subtests, in a lab. newClient gives a client with an empty MSB_HOME of its own.
func Run(t *testing.T, newClient func(*testing.T) *msb.Client) {
	l, err := link.New(link.Options{Name: "msbtest", Address: netip.MustParsePrefix("203.0.113.20/24")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	b := bench{newClient: newClient, archive: filepath.Join(t.TempDir(), "image.tar"), address: l.Address.Addr()}
	img, err := images.Build(images.Spec{Nonce: "msb-test", Env: map[string]string{"FROM_IMAGE": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := images.WriteDockerArchive(b.archive, reference, img); err != nil {
		t.Fatal(err)
	}
	b.probe = buildProbe(t)
	for _, test := range []struct {
		name string
		run  func(bench, *testing.T)
	}{
		{"Version", bench.version},
		{"Errors", bench.errors},
		{"Life", bench.life},
		{"Conversation", bench.conversation},
		{"Identity", bench.identity},
		{"Egress", bench.egress},
		{"Deny", bench.deny},
		{"Rules", bench.rules},
		{"Store", bench.store},
		{"Pull", bench.pull},
		{"Image", bench.image},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(b, t) })
	}
}

// reference is the test image's.
const reference = "parity.test/msb:1"

type bench struct {
	newClient func(*testing.T) *msb.Client
	archive   string     // the test image
	probe     string     // the probe program
	address   netip.Addr // the lab's own, of the test's link
}

// buildProbe builds the probe program, or takes the one in the folder that PARITY_BIN names: a compiler is slow in an emulated lab.
func buildProbe(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("PARITY_BIN"); dir != "" {
		return filepath.Join(dir, probe.Program)
	}
	file := filepath.Join(t.TempDir(), probe.Program)
	build := exec.Command("go", "build", "-o", file, "dagger/parity/cmd/parity-probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// loaded gives a client whose image store has the test image.
func (b bench) loaded(t *testing.T) *msb.Client {
	t.Helper()
	c := b.newClient(t)
	if err := c.Load(t.Context(), b.archive); err != nil {
		t.Fatal(err)
	}
	return c
}

// created gives a client with a running sandbox that has the probe program.
func (b bench) created(t *testing.T, name string, deny bool) *msb.Client {
	t.Helper()
	c := b.loaded(t)
	b.create(t, c, name, deny)
	return c
}

const guestProbe = "/opt/parity-probe"

func (b bench) create(t *testing.T, c *msb.Client, name string, deny bool) {
	t.Helper()
	b.createOf(t, c, name, reference, deny)
}

func (b bench) createOf(t *testing.T, c *msb.Client, name, image string, deny bool) {
	t.Helper()
	o := msb.CreateOptions{Name: name, Image: image, CPUs: 1, MemoryMiB: 256, DenyEgress: deny,
		Copies: []msb.Copy{{Source: b.probe, Target: guestProbe}}}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func (b bench) version(t *testing.T) {
	v, err := b.newClient(t).Version(t.Context())
	// What follows a plus sign says what build it is.
	if release, _, _ := strings.Cut(v, "+"); err != nil || release != msb.PinnedRelease().Version {
		t.Errorf("the version is %q, %v", v, err)
	}
}

func (b bench) life(t *testing.T) {
	c := b.loaded(t)
	ctx := t.Context()
	var operations []string
	c.Observe = func(op string, elapsed time.Duration, _ error) {
		if elapsed > 0 {
			operations = append(operations, op)
		}
	}
	list, err := c.Images(ctx)
	if err != nil || len(list) != 1 || list[0].Reference != reference || list[0].Architecture != "amd64" ||
		!strings.HasPrefix(list[0].Digest, "sha256:") || list[0].SizeBytes <= 0 || list[0].OS != "linux" {
		t.Fatalf("the image store has %+v, %v", list, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("copied"), 0o755); err != nil {
		t.Fatal(err)
	}
	create := msb.CreateOptions{
		Name: "life", Image: reference, CPUs: 1, MemoryMiB: 256, Env: map[string]string{"WORD": "a b"}, Labels: map[string]string{"parity": "1"},
		User: "dev", Workdir: "/home/dev", DenyEgress: true, Copies: []msb.Copy{{Source: file, Target: "/opt/sub/file"}},
	}
	if err := c.Create(ctx, create); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, create); !errors.Is(err, msb.ErrExists) {
		t.Errorf("a second create of one name gives %v", err)
	}

	box, err := c.Inspect(ctx, "life")
	if err != nil {
		t.Fatal(err)
	}
	if box.Status != msb.StatusRunning || box.CreatedAt.IsZero() || box.UpdatedAt.Before(box.CreatedAt) || box.ActiveConfig == nil || box.Name != "life" {
		t.Errorf("inspect says %s", box.Raw)
	}
	listed, err := c.List(ctx)
	if err != nil || len(listed) != 1 || listed[0] != (msb.Listed{Name: "life", Status: msb.StatusRunning}) {
		t.Errorf("list says %+v, %v", listed, err)
	}

	script := "echo $WORD $FROM_IMAGE $HOME; id -un; pwd; hostname; stat -c '%u %a' /opt/sub/file; cat /opt/sub/file; echo >&2 err; exit 23"
	res, err := c.Exec(ctx, "life", []string{"sh", "-c", script}, nil)
	const want = "a b 1 /home/dev\ndev\n/home/dev\nlife\n0 755\ncopied"
	if code, ok := proc.ExitCode(err); !ok || code != 23 || string(res.Stdout) != want || string(res.Stderr) != "err\n" {
		t.Errorf("exec gives %d %v, %q, %q", code, err, res.Stdout, res.Stderr)
	}
	as := msb.ExecOptions{User: "root", Workdir: "/opt", Env: map[string]string{"WORD": "c"}}
	if res, err = proc.Run(ctx, c.ExecCmdAs("life", as, []string{"sh", "-c", "echo $WORD $FROM_IMAGE; id -un; pwd"})); err != nil ||
		string(res.Stdout) != "c 1\nroot\n/opt\n" {
		t.Errorf("exec as another user gives %q, %v", res.Stdout, err)
	}
	for what, argv := range map[string][]string{
		"a program that is missing":     {"no-such-program"},
		"a file that is not executable": {"/etc/passwd"},
	} {
		res, err := c.Exec(ctx, "life", argv, nil)
		if code, ok := proc.ExitCode(err); !ok || code != 1 || !strings.Contains(string(res.Stderr), "exec failed to start") {
			t.Errorf("%s gives %v", what, err)
		}
	}
	_, err = c.Exec(ctx, "life", []string{"/bin/sh", "-c", "kill -KILL $$"}, nil)
	if code, ok := proc.ExitCode(err); !ok || code != 255 {
		t.Errorf("a command that was killed gives %v", err)
	}
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	if res, err = c.Exec(ctx, "life", []string{"/bin/cat"}, bytes.NewReader(sent)); err != nil || !bytes.Equal(res.Stdout, sent) {
		t.Errorf("1 MiB of stdin came back as %d bytes, %v", len(res.Stdout), err)
	}
	if err := os.WriteFile(file, sent, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyIn(ctx, "life", file, "/opt/second"); err != nil {
		t.Fatal(err)
	}
	if res, err = c.Exec(ctx, "life", []string{"/bin/cat", "/opt/second"}, nil); err != nil || !bytes.Equal(res.Stdout, sent) {
		t.Errorf("the copied file has %d bytes, %v", len(res.Stdout), err)
	}
	if err := c.CopyIn(ctx, "life", file, "/no/such/folder/file"); err == nil {
		t.Error("a copy into a folder that does not exist succeeded")
	}

	if _, err := b.command(t, c, "remove", "life"); err == nil {
		t.Error("removing a running sandbox without --force succeeded")
	}
	if err := c.Remove(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Inspect(ctx, "life"); !errors.Is(err, msb.ErrNotFound) {
		t.Errorf("of a removed sandbox inspect says %v", err)
	}
	if err := c.Remove(ctx, "life"); !errors.Is(err, msb.ErrNotFound) {
		t.Errorf("removing a removed sandbox gives %v", err)
	}
	if got := strings.Join(operations[:3], ","); got != "image ls,create,create" {
		t.Errorf("the observed operations begin with %s", got)
	}
}

// command runs a command that the client does not have.
func (b bench) command(t *testing.T, c *msb.Client, args ...string) (proc.Result, error) {
	t.Helper()
	return proc.Run(t.Context(), proc.Cmd{Argv: append([]string{c.Path}, args...), Env: append(os.Environ(), "MSB_HOME="+c.Home)})
}

// Bytes must pass both ways as they come: a conversation, not a batch. SSH over exec stands on it.
func (b bench) conversation(t *testing.T) {
	c := b.created(t, "talk", false)
	cmd := c.ExecCmd("talk", []string{"/bin/sh", "-c", "while read -r line; do echo \"got $line\"; done"})
	in, out := io.Pipe()
	answers, stdout := io.Pipe()
	cmd.Stdin, cmd.Stdout = in, stdout
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := proc.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { answers.CloseWithError(ctx.Err()) })
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(out, word+"\n"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len("got \n")+len(word))
		if _, err := io.ReadFull(answers, buf); err != nil || string(buf) != "got "+word+"\n" {
			t.Fatalf("the answer to %q is %q, %v", word, buf, err)
		}
	}
	out.Close()
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func (b bench) errors(t *testing.T) {
	c := b.newClient(t)
	ctx := t.Context()
	for what, do := range map[string]func() error{
		"start":  func() error { return c.Start(ctx, "nobody") },
		"stop":   func() error { return c.Stop(ctx, "nobody") },
		"copy":   func() error { return c.CopyIn(ctx, "nobody", b.archive, "/opt/x") },
		"remove": func() error { return c.Remove(ctx, "nobody") },
	} {
		err := do()
		if code, ok := proc.ExitCode(err); !ok || code != 1 || !errors.Is(err, msb.ErrNotFound) || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("%s of what does not exist gives %v", what, err)
		}
	}
	res, err := c.Exec(ctx, "nobody", []string{"/bin/true"}, nil)
	if code, ok := proc.ExitCode(err); !ok || code != 1 || !strings.Contains(string(res.Stderr), "sandbox not found") {
		t.Errorf("exec in what does not exist gives %v", err)
	}
	err = c.Load(ctx, "/nonexistent.tar")
	if err == nil || !strings.Contains(err.Error(), "/nonexistent.tar") || !strings.Contains(err.Error(), "exited with code 1") {
		t.Errorf("loading what does not exist gives %v", err)
	}
	for _, args := range [][]string{{"no-such-command"}, {"create", "--no-such-flag"}, {"inspect"}, {"inspect", "a", "b"}} {
		_, err := b.command(t, c, args...)
		if code, ok := proc.ExitCode(err); !ok || code != 2 || !strings.Contains(err.Error(), "Usage: msb") {
			t.Errorf("%s gives %v", args, err)
		}
	}
	list, err := c.List(ctx)
	if err != nil || list == nil || len(list) > 0 {
		t.Errorf("an empty list is %v, %v", list, err)
	}
	images, err := c.Images(ctx)
	if err != nil || images == nil || len(images) > 0 {
		t.Errorf("an empty image store has %v, %v", images, err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := c.List(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at its deadline a command gives %v", err)
	}
	broken := msb.Client{Path: "/bin/echo", Home: c.Home} // prints its arguments: not JSON
	var syntax *json.SyntaxError
	if _, err := broken.Inspect(ctx, "x"); !errors.As(err, &syntax) || !strings.Contains(err.Error(), "msb inspect") {
		t.Errorf("text where JSON is due gives %v", err)
	}
}

// What tells a restart from a recreation, and the trap that a command boots a stopped sandbox.
func (b bench) identity(t *testing.T) {
	c := b.created(t, "same", false)
	ctx := t.Context()
	const marker = "/var/lib/parity/marker"
	created := inspect(t, c, "same", msb.StatusRunning)
	first := inGuest(t, c, "same", probe.BootIDArgs(), probe.ParseBootID).BootID
	if again := inGuest(t, c, "same", probe.BootIDArgs(), probe.ParseBootID).BootID; again != first || first == "" {
		t.Errorf("the boot ID is %q, and then %q", first, again)
	}
	wrote := inGuest(t, c, "same", probe.MarkerWriteArgs(marker, "word"), probe.ParseMarker)
	if !wrote.Exists || wrote.Value != "word" || !wrote.RootDevice || wrote.FSType != "overlay" || wrote.MountPoint != "/" {
		t.Errorf("the marker is %+v", wrote)
	}

	if err := c.Stop(ctx, "same"); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(ctx, "same"); err != nil {
		t.Errorf("stopping a stopped sandbox gives %v", err)
	}
	stopped := inspect(t, c, "same", msb.StatusStopped)
	if stopped.ActiveConfig != nil || !stopped.CreatedAt.Equal(created.CreatedAt) {
		t.Errorf("after stop, inspect says %s", stopped.Raw)
	}
	trapped := inGuest(t, c, "same", probe.BootIDArgs(), probe.ParseBootID).BootID
	inspect(t, c, "same", msb.StatusStopped)
	if err := c.CopyIn(ctx, "same", b.probe, "/opt/copied"); err != nil {
		t.Fatal(err)
	}
	inspect(t, c, "same", msb.StatusStopped)

	if err := c.Start(ctx, "same"); err != nil {
		t.Fatal(err)
	}
	err := c.Start(ctx, "same")
	if code, ok := proc.ExitCode(err); !ok || code != 1 {
		t.Errorf("starting a running sandbox gives %v", err)
	}
	restarted := inspect(t, c, "same", msb.StatusRunning)
	if !restarted.CreatedAt.Equal(created.CreatedAt) {
		t.Errorf("created at %s, and after a restart at %s", created.CreatedAt, restarted.CreatedAt)
	}
	second := inGuest(t, c, "same", probe.BootIDArgs(), probe.ParseBootID).BootID
	if second == first || second == trapped || trapped == first {
		t.Errorf("the boot IDs are %q, then %q for a command in the stopped sandbox, then %q", first, trapped, second)
	}
	if kept := inGuest(t, c, "same", probe.MarkerReadArgs(marker), probe.ParseMarker); kept != wrote {
		t.Errorf("after a restart the marker is %+v", kept)
	}
	if _, err := c.Exec(ctx, "same", []string{"/opt/copied", "--version"}, nil); err != nil {
		t.Errorf("what was copied into the stopped sandbox: %v", err)
	}

	if err := c.Remove(ctx, "same"); err != nil {
		t.Fatal(err)
	}
	b.create(t, c, "same", false)
	recreated := inspect(t, c, "same", msb.StatusRunning)
	if !recreated.CreatedAt.After(created.CreatedAt) {
		t.Errorf("created at %s, and after a recreation at %s", created.CreatedAt, recreated.CreatedAt)
	}
	if third := inGuest(t, c, "same", probe.BootIDArgs(), probe.ParseBootID).BootID; third == first || third == second {
		t.Errorf("after a recreation the boot ID is an earlier one, %s", third)
	}
	gone := inGuest(t, c, "same", probe.MarkerReadArgs(marker), probe.ParseMarker)
	if gone.Exists || !gone.RootDevice {
		t.Errorf("after a recreation the marker is %+v", gone)
	}
}

// The default policy: bytes arrive, from the lab's own address, and a port where nobody listens is never refused. A private address is.
func (b bench) egress(t *testing.T) {
	c := b.created(t, "free", false)
	for name, config := range configs(inspect(t, c, "free", msb.StatusRunning)) {
		if config == nil || config.Network == nil || config.Network.Enabled == nil || !*config.Network.Enabled || config.Network.Policy != nil {
			t.Errorf("%s is %+v: expected a network that is enabled, and no policy", name, config)
		}
	}
	e := b.endpoint(t)
	answer := dial(t, c, "free", e.Addr(), "free")
	if answer.Outcome != probe.OutcomeBody || answer.Body != e.Body("free") {
		t.Errorf("the endpoint's answer is %+v", answer)
	}
	if got := e.Receipts(); len(got) != 1 || got[0].Nonce != "free" || got[0].Peer.Addr() != b.address {
		t.Errorf("the endpoint has the receipts %+v", got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	dead := dial(t, c, "free", e.Addr(), "dead")
	switch dead.Outcome {
	case probe.OutcomeReset, probe.OutcomeEOF, probe.OutcomeTimeout:
	default:
		t.Errorf("at a port where nobody listens the outcome is %+v", dead)
	}
	if private := dial(t, c, "free", netip.MustParseAddrPort("10.1.2.3:80"), "private"); private.Outcome != probe.OutcomeRefused {
		t.Errorf("at a private address the outcome is %+v", private)
	}
}

// Denied egress: refused, and nothing arrives, also after a restart; and not after a recreation without it.
func (b bench) deny(t *testing.T) {
	c := b.created(t, "bound", true)
	ctx := t.Context()
	e := b.endpoint(t)
	for _, when := range []string{"created", "restarted"} {
		if when == "restarted" {
			if err := errors.Join(c.Stop(ctx, "bound"), c.Start(ctx, "bound")); err != nil {
				t.Fatal(err)
			}
		}
		box := inspect(t, c, "bound", msb.StatusRunning)
		for name, config := range configs(box) {
			if config == nil || config.Network == nil || config.Network.Enabled == nil || !*config.Network.Enabled || config.Network.Policy == nil ||
				config.Network.Policy.DefaultEgress != "deny" || config.Network.Policy.DefaultIngress != "allow" || len(config.Network.Policy.Rules) > 0 {
				t.Errorf("%s, %s is %+v: expected a network that is enabled and denies egress", when, name, config)
			}
		}
		if pending := strings.TrimSpace(string(box.PendingChanges)); pending != "[]" {
			t.Errorf("%s, pending_changes is %s", when, pending)
		}
		if answer := dial(t, c, "bound", e.Addr(), when); answer.Outcome != probe.OutcomeRefused || answer.Errno != "ECONNREFUSED" {
			t.Errorf("%s, the endpoint's answer is %+v", when, answer)
		}
	}
	if got := e.Receipts(); len(got) > 0 {
		t.Errorf("the endpoint has the receipts %+v", got)
	}
	if err := c.Remove(ctx, "bound"); err != nil {
		t.Fatal(err)
	}
	b.create(t, c, "bound", false)
	if answer := dial(t, c, "bound", e.Addr(), "recreated"); answer.Outcome != probe.OutcomeBody {
		t.Errorf("recreated without a policy, the endpoint's answer is %+v", answer)
	}
}

// Rules over denied egress: they are told in the order in which they were given, and the first one that matches holds.
func (b bench) rules(t *testing.T) {
	c, open, closed := b.loaded(t), b.endpoint(t), b.endpoint(t)
	only := fmt.Sprintf("allow@%s:tcp:%d", open.Addr().Addr(), open.Addr().Port())
	o := msb.CreateOptions{
		Name: "ruled", Image: reference, CPUs: 1, MemoryMiB: 256, DenyEgress: true, NetRules: []string{only, "deny@any", "allow@private"},
		Copies: []msb.Copy{{Source: b.probe, Target: guestProbe}},
	}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`[
		{"action": "allow", "destination": {"cidr": "%s/32"}, "direction": "egress", "ports": [{"end": %d, "start": %d}], "protocols": ["tcp"]},
		{"action": "deny", "destination": "any", "direction": "egress", "ports": [], "protocols": []},
		{"action": "allow", "destination": {"group": "private"}, "direction": "egress", "ports": [], "protocols": []}
	]`, open.Addr().Addr(), open.Addr().Port(), open.Addr().Port())
	for name, config := range configs(inspect(t, c, "ruled", msb.StatusRunning)) {
		have, err := json.Marshal(config.Network.Policy.Rules)
		if err != nil {
			t.Fatal(err)
		}
		if !sameJSON(t, string(have), want) {
			t.Errorf("%s has the rules %s, want %s", name, have, want)
		}
	}
	if answer := dial(t, c, "ruled", open.Addr(), "open"); answer.Outcome != probe.OutcomeBody {
		t.Errorf("at the port that is allowed, the endpoint's answer is %+v", answer)
	}
	for _, addr := range []netip.AddrPort{closed.Addr(), netip.MustParseAddrPort("10.1.2.3:80")} {
		if answer := dial(t, c, "ruled", addr, "closed"); answer.Outcome != probe.OutcomeRefused {
			t.Errorf("at %s the outcome is %+v", addr, answer)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var one, other any
	if err := errors.Join(json.Unmarshal([]byte(a), &one), json.Unmarshal([]byte(b), &other)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(one, other)
}

func (b bench) endpoint(t *testing.T) *endpoint.Endpoint {
	t.Helper()
	e, err := endpoint.Start(netip.AddrPortFrom(b.address, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func configs(box msb.Sandbox) map[string]*msb.Config {
	return map[string]*msb.Config{"config": box.Config, "active_config": box.ActiveConfig}
}

func inspect(t *testing.T, c *msb.Client, name string, want msb.Status) msb.Sandbox {
	t.Helper()
	box, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if box.Status != want {
		t.Errorf("the status of %s is %s, want %s", name, box.Status, want)
	}
	return box
}

// inGuest runs the probe program in a sandbox and reads its answer.
func inGuest[T any](t *testing.T, c *msb.Client, name string, args []string, parse func([]byte) (T, error)) T {
	t.Helper()
	res, err := c.Exec(t.Context(), name, append([]string{guestProbe}, args...), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := parse(res.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func dial(t *testing.T, c *msb.Client, name string, to netip.AddrPort, nonce string) probe.TCP {
	t.Helper()
	return inGuest(t, c, name, probe.TCPArgs(to, nonce, 20*time.Second), probe.ParseTCP)
}
