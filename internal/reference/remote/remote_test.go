package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/httpfixture"
	"dagger/parity/internal/reference/remote"
)

// agentOf is an agent that keeps its request in $HOME/request, and then gives back what it is told.
func agentOf(version string) []byte {
	return fmt.Appendf(nil, `#!/bin/sh
# %s
case "$*" in
"devsy agent --probe") exit 0 ;;
"devsy agent") ;;
*) exit 9 ;;
esac
read -r request
printf '%%s' "$request" >"$HOME/request"
echo '{"agent":"ready"}'
exec cat
`, version+strings.Repeat("#", 256<<10))
}

// tools are what agent.sh needs.
var tools = []string{"sh", "env", "uname", "dirname", "mkdir", "id", "mktemp", "sha256sum", "rm", "chmod", "mv", "cat", "df", "tail", "wc"}

// bench is a remote machine: a folder, and an environment with nothing of this one's but some programs.
type bench struct {
	*testing.T
	remote.Machine
	bin, home, tmp string
	served         *artifacts.Server
	log            bytes.Buffer
}

func newBench(t *testing.T, more ...string) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{T: t, bin: filepath.Join(dir, "bin"), home: filepath.Join(dir, "home"), tmp: filepath.Join(dir, `it's a "tmp" of $HOME`)}
	for _, d := range []string{b.bin, b.home, b.tmp} {
		b.must(os.Mkdir(d, 0o755))
	}
	for _, tool := range append(more, tools...) {
		path, err := exec.LookPath(tool)
		b.must(err)
		b.must(os.Symlink(path, filepath.Join(b.bin, tool)))
	}
	agent := agentOf("the wanted one")
	file := filepath.Join(dir, "agent")
	b.must(os.WriteFile(file, agent, 0o600))
	var err error
	b.served, err = artifacts.Start(netip.MustParseAddrPort("127.0.0.1:0"), "devsy-linux-amd64", agent)
	b.must(err)
	t.Cleanup(func() { b.served.Close() })
	b.Machine = remote.Machine{
		Provider: "p", Env: []string{"PATH=" + os.Getenv("PATH")}, Log: &b.log, Command: b.within(""),
		Agent: remote.Agent{
			File: file, Path: filepath.Join(b.tmp, "devsy"), URL: strings.TrimSuffix(b.served.URL(), "devsy-linux-amd64"),
			Stall: time.Second, Args: []string{"devsy", "agent"},
		},
	}
	return b
}

// within is an exec.command that runs a script before it goes there, in a mount namespace of its own.
func (b *bench) within(script string) string {
	there := []string{"env", "-i", "HOME=" + b.home, "PATH=" + b.bin}
	if script == "" {
		return "exec " + shellescape.QuoteCommand(there) + ` /bin/sh -c "${COMMAND}"`
	}
	return "exec unshare --mount /bin/sh -c " + shellescape.Quote(script+"; exec "+shellescape.QuoteCommand(there)+` /bin/sh -c "${COMMAND}"`)
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts the agent and speaks with it.
func (b *bench) start() error {
	b.Helper()
	s, err := b.Start(bounded(b.T), []byte(`{"a":"b c"}`))
	if err != nil {
		return err
	}
	defer s.Close()
	if request, _ := os.ReadFile(filepath.Join(b.home, "request")); string(request) != `{"a":"b c"}` {
		b.Errorf("the agent got the request %q", request)
	}
	if _, err := io.WriteString(s, "to and fro"); err != nil {
		return err
	}
	back := make([]byte, len("to and fro"))
	if _, err := io.ReadFull(s, back); err != nil || string(back) != "to and fro" {
		b.Errorf("the agent gave back %q, %v", back, err)
	}
	return nil
}

// placed checks that the wanted agent is there, can be executed by everybody, and is alone.
func (b *bench) placed() os.FileInfo {
	b.Helper()
	want, _ := os.ReadFile(b.Agent.File)
	got, err := os.ReadFile(b.Agent.Path)
	b.must(err)
	info, err := os.Lstat(b.Agent.Path)
	b.must(err)
	if !bytes.Equal(got, want) || info.Mode() != 0o755 {
		b.Errorf("the agent at %s has %d bytes and the mode %s", b.Agent.Path, len(got), info.Mode())
	}
	b.onlyThere("devsy")
	return info
}

// onlyThere checks that nothing else is in the agent's folder.
func (b *bench) onlyThere(names ...string) {
	b.Helper()
	entries, err := os.ReadDir(b.tmp)
	b.must(err)
	var seen []string
	for _, e := range entries {
		seen = append(seen, e.Name())
	}
	if fmt.Sprint(seen) != fmt.Sprint(names) {
		b.Errorf("in the agent's folder: %q, expected %q", seen, names)
	}
}

func TestTheAgentIsDownloadedOnce(t *testing.T) {
	for _, tool := range []string{"curl", "wget"} {
		t.Run(tool, func(t *testing.T) {
			b := newBench(t, tool)
			b.must(b.start())
			before := b.placed()
			b.must(b.start())
			if !os.SameFile(before, b.placed()) || b.served.Requests() != 1 || strings.Contains(b.log.String(), "sent from here") {
				t.Errorf("it was not kept: %d requests, %s", b.served.Requests(), &b.log)
			}
		})
	}
}

// What cannot be downloaded is sent, and the log says why.
func TestTheAgentIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		more []string
		make func(*bench)
		want string
	}{
		"no tool":        {want: "there is neither curl nor wget"},
		"no URL":         {more: []string{"curl"}, make: func(b *bench) { b.Agent.URL = "" }, want: "there is no URL"},
		"404":            {more: []string{"curl"}, make: func(b *bench) { b.served.SetOffline(true) }, want: "curl ended with code 22"},
		"404 of wget":    {more: []string{"wget"}, make: func(b *bench) { b.served.SetOffline(true) }, want: "wget ended with code 8"},
		"no server":      {more: []string{"curl"}, make: func(b *bench) { b.must(b.served.Close()) }, want: "curl ended with code 7"},
		"truncated":      {more: []string{"curl"}, make: func(b *bench) { b.served.Misbehave(httpfixture.Truncated) }, want: "curl ended with code 18"},
		"stalled":        {more: []string{"curl"}, make: func(b *bench) { b.served.Misbehave(httpfixture.Stalled) }, want: "curl ended with code 28"},
		"stalled, wget":  {more: []string{"wget"}, make: func(b *bench) { b.served.Misbehave(httpfixture.Stalled) }, want: "wget ended with code 4"},
		"tampered":       {more: []string{"curl"}, make: func(b *bench) { b.served.Misbehave(httpfixture.Tampered) }, want: "what came is another file, by its SHA-256"},
		"tampered, wget": {more: []string{"wget"}, make: func(b *bench) { b.served.Misbehave(httpfixture.Tampered) }, want: "what came is another file, by its SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.more...)
			if c.make != nil {
				c.make(b)
			}
			b.must(b.start())
			b.placed()
			if !strings.Contains(b.log.String(), "the agent is sent from here, it was not downloaded there: "+c.want) {
				t.Errorf("the log is %s", &b.log)
			}
		})
	}
}

func TestWhatIsNotTheAgentIsReplaced(t *testing.T) {
	mark := func(b *bench) []byte { return []byte("#!/bin/sh\n>" + shellescape.Quote(b.home+"/executed") + "\n") }
	for name, put := range map[string]func(*bench) error{
		"a stale one":        func(b *bench) error { return os.WriteFile(b.Agent.Path, mark(b), 0o755) },
		"cannot be executed": func(b *bench) error { return os.WriteFile(b.Agent.Path, agentOf("the wanted one"), 0o644) },
		"somebody else's": func(b *bench) error {
			return errors.Join(os.WriteFile(b.Agent.Path, agentOf("the wanted one"), 0o755), os.Chown(b.Agent.Path, 7, 7))
		},
		"a symlink to another": func(b *bench) error {
			return errors.Join(os.WriteFile(b.home+"/x", mark(b), 0o755), os.Symlink(b.home+"/x", b.Agent.Path))
		},
		"a dangling symlink": func(b *bench) error { return os.Symlink(b.home+"/y", b.Agent.Path) },
		"its folder is not there": func(b *bench) error {
			b.tmp = filepath.Join(b.tmp, "below")
			b.Agent.Path = filepath.Join(b.tmp, "devsy")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "curl")
			b.must(put(b))
			b.must(b.start())
			b.placed()
			if left, _ := filepath.Glob(b.home + "/[exy]*"); len(left) > 0 && left[0] != b.home+"/x" {
				t.Errorf("%q: it was executed, or written to", left)
			}
		})
	}
}

func TestRemotesThatCannotTakeTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*bench)
		want []string
	}{
		"noexec": {func(b *bench) {
			b.Command = b.within("mount -t tmpfs -o noexec none " + shellescape.Quote(b.tmp))
		}, []string{"the agent cannot be run in ", "mounted noexec", "agent.path"}},
		"full disk": {func(b *bench) {
			b.Command = b.within("mount -t tmpfs -o size=64k none " + shellescape.Quote(b.tmp))
		}, []string{"No space left on device", "is its disk full?", " 100% ", "agent.path"}},
		"another architecture": {func(b *bench) {
			b.must(os.Remove(filepath.Join(b.bin, "uname")))
			b.must(os.WriteFile(filepath.Join(b.bin, "uname"), []byte("#!/bin/sh\n[ \"$1\" = -n ] || echo aarch64\n"), 0o755))
		}, []string{"this machine is of the architecture arm64, and the agent for amd64", "use a CLI that was built for arm64"}},
		"no sha256sum": {func(b *bench) { b.must(os.Remove(filepath.Join(b.bin, "sha256sum"))) },
			[]string{"there is no sha256sum", "install coreutils"}},
		"a folder in its place": {func(b *bench) { b.must(os.Mkdir(b.Agent.Path, 0o755)) },
			[]string{"expected a file at ", "seen a folder", "agent.path"}},
		"a folder that cannot be made": {func(b *bench) { b.Agent.Path = "/proc/parity/devsy" },
			[]string{"the folder of the agent, /proc/parity, cannot be made", "agent.path"}},
		"it does not run": {func(b *bench) { b.must(os.WriteFile(b.Agent.File, []byte("#!/bin/sh\necho oops; exit 3\n"), 0o600)) },
			[]string{"the agent does not run", "seen oops"}},
		"unreachable": {func(b *bench) { b.Command = "echo refused >&2; : secret; exit 255" },
			[]string{"exec.command exited with code 255", "refused"}},
		"a greeting": {func(b *bench) { b.Command = "echo Welcome; " + b.Command },
			[]string{`seen "Welcome\n"`, "exec.command must print nothing of its own"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "curl")
			c.make(b)
			err := b.start()
			for _, want := range append(c.want, `the remote of the provider "p": `) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("got %v, want %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "COMMAND") {
				t.Errorf("the error shows exec.command: %v", err)
			}
			if name != "a folder in its place" {
				b.onlyThere()
			}
		})
	}
}

// Nobody waits any more: what was begun ends, and nothing is left of it.
func TestACancelledDownload(t *testing.T) {
	b := newBench(t, "curl")
	b.Agent.Stall = time.Hour
	b.served.Misbehave(httpfixture.Stalled)
	ctx, cancel := context.WithCancel(bounded(t))
	failed := make(chan error, 1)
	go func() {
		_, err := b.Start(ctx, []byte("{}"))
		failed <- err
	}()
	for b.served.Requests() == 0 {
		select {
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		left := ""
		for _, c := range commands {
			if text, _ := os.ReadFile(c); bytes.Contains(text, []byte(b.tmp)) {
				left = string(text)
			}
		}
		if left == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it goes on: %q", left)
		}
	}
	b.onlyThere()
}
