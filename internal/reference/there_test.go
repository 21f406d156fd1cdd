package reference_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	servers "dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/httpfixture"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/subject"
)

// remoteBench is a CLI, a remote machine behind SSH with an msb of its own, and the servers of what is to be brought there. The machine is a
// folder, and an environment that has nothing of this one's.
type remoteBench struct {
	*bench
	sshd      *sshd
	served    *servers.Pair
	binary    []byte // the runtime
	home      string // HOME there
	agentPath string // of the agent there
	theirMSB  string // MSB_HOME there
	manifest  string
	good      string // the manifest's text
}

func newRemoteBench(t *testing.T) *remoteBench {
	t.Helper()
	r := &remoteBench{bench: newBench(t), home: t.TempDir(), theirMSB: t.TempDir(), manifest: filepath.Join(t.TempDir(), "provider.yaml")}
	var err error
	r.binary, err = os.ReadFile(runtime)
	r.must(err)
	self, err := os.ReadFile("/proc/self/exe")
	r.must(err)
	any := netip.MustParseAddrPort("127.0.0.1:0")
	r.served, err = servers.StartPair(servers.File{Listen: any, Name: "devsy-linux-amd64", Content: self},
		servers.File{Listen: any, Name: "runtime", Content: r.binary})
	r.must(err)
	t.Cleanup(func() { r.served.Close() })
	bin, rest, _ := strings.Cut(r.Home.Path, ":")
	r.Home.Path, r.Home.MSBHome = rest, "" // there is no msb here
	r.sshd = startSSHD(t, []string{"HOME=" + r.home, "MSB_HOME=" + r.theirMSB, "PATH=" + bin + ":" + rest, "GORACE=atexit_sleep_ms=0"})
	r.agentPath = filepath.Join(r.home, "the agent")
	m := strings.Replace(manifestOf(r.served.Runtime.URL(), sum(r.binary)), "local: true", fmt.Sprintf("local: false\n  path: %q\n  downloadURL: %q",
		r.agentPath, strings.TrimSuffix(r.served.Agent.URL(), "devsy-linux-amd64")), 1)
	r.good = m + fmt.Sprintf("exec:\n  command: |-\n    exec %s dial %s\n", os.Args[0], r.sshd.Addr())
	r.write(r.good)
	t.Cleanup(r.nothingRuns)
	return r
}

func (r *remoteBench) write(manifest string) {
	r.Helper()
	r.must(os.WriteFile(r.manifest, []byte(manifest), 0o644))
}

// added is a bench whose provider was added.
func addedRemote(t *testing.T) *remoteBench {
	t.Helper()
	r := newRemoteBench(t)
	r.must(r.ProviderAdd(bounded(t), r.manifest, "p", map[string]string{"MICROSANDBOX_CPUS": "2"}))
	return r
}

func (r *remoteBench) workspaceDir() string {
	return filepath.Join(r.home, ".devsy", "contexts", "default", "workspaces", "w")
}

func (r *remoteBench) installed() string {
	return filepath.Join(r.workspaceDir(), "agent", "binaries", "devsy_runtime_driver", "runtime")
}

func (r *remoteBench) cache() string { return filepath.Join(r.home, ".cache", "devsy", "providers") }

// askedThere gives the commands of a kind that the msb there was given.
func (r *remoteBench) askedThere(verb string) []string {
	there := *r.bench
	there.msb = r.theirMSB
	return there.asked(verb)
}

// running gives the processes that run the agent or a runtime there.
func (r *remoteBench) running() (found []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, r.home) {
			found = append(found, link+" -> "+target)
		}
	}
	return found
}

// nothingRuns waits until nothing of the CLI's runs there.
func (r *remoteBench) nothingRuns() {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); len(r.running()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("these run on: %q", r.running())
		}
	}
}

// The contract does not know where a workspace is.
func TestContractOfARemoteProvider(t *testing.T) {
	r := newRemoteBench(t)
	other := r.bench.home()
	other.MSBHome = ""
	r.keepsContract(r.manifest, other, r.theirMSB)
	if n := r.served.Agent.Requests(); n != 1 {
		t.Errorf("the agent was asked for %d times", n)
	}
}

// All is there, and only the record is here. The runtime is downloaded once, and its source may go.
func TestRemoteLifecycle(t *testing.T) {
	r := addedRemote(t)
	if r.served.Agent.Requests()+r.served.Runtime.Requests() != 0 || len(r.running()) > 0 {
		t.Error("`provider add` spoke to the remote")
	}
	up, err := r.up(subject.UpOptions{ProviderOptions: map[string]string{"MICROSANDBOX_BLOCK_EGRESS": "1"}})
	r.must(err)
	w, err := r.Find(bounded(t), "w")
	r.must(err)
	if up.ContainerID != subject.VMName(w.UID) {
		t.Errorf("up: got %+v", up)
	}
	create := r.askedThere("create")
	for _, want := range []string{"--memory 256M", "--cpus 2", "--net-default-egress deny", "--env A=b c"} {
		if len(create) != 1 || !strings.Contains(create[0], want) {
			t.Errorf("no %q in what msb was asked for: %q", want, create)
		}
	}
	if len(r.asked("create")) > 0 {
		t.Error("the msb of this machine was used")
	}
	before, err := os.Lstat(r.installed())
	r.must(err)
	content, _ := os.ReadFile(r.installed())
	if !before.Mode().IsRegular() || before.Mode().Perm() != 0o755 || sum(content) != sum(r.binary) {
		t.Errorf("installed with the mode %s and the SHA-256 %s", before.Mode(), sum(content))
	}
	if a, b := r.served.Agent.Receipts(), r.served.Runtime.Receipts(); a.Total != 1 || b.Total != 1 || !a.Requests[0].Time.Before(b.Requests[0].Time) {
		t.Errorf("requests of the agent %+v, and of the runtime %+v", a, b)
	}
	if cached, _ := os.ReadDir(r.cache()); len(cached) != 1 || cached[0].Name() != sum([]byte(r.served.Runtime.URL())) {
		t.Errorf("the download cache has %v", cached)
	}

	// Neither the URL nor the cache is needed again.
	r.served.Runtime.SetOffline(true)
	r.must(os.RemoveAll(r.cache()))
	held, err := os.Open(r.installed())
	r.must(err)
	defer held.Close()
	r.must(r.Stop(bounded(t), "w"))
	if s, err := r.Status(bounded(t), "w"); err != nil || s.State != subject.Stopped {
		t.Errorf("status: %+v, %v", s, err)
	}
	_, err = r.up(subject.UpOptions{})
	r.must(err)
	res, err := r.SSH(bounded(t), "w", "pwd; cat; echo err >&2; exit 23", strings.NewReader("in"))
	if code, _ := proc.ExitCode(err); code != 23 || string(res.Stdout) != "/workspaces/app\nin" || string(res.Stderr) != "err\n" {
		t.Errorf("ssh: %q, %q, %v", res.Stdout, res.Stderr, err)
	}
	after, err := os.Lstat(r.installed())
	if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("the runtime was written again: %v, %v", after, err)
	}
	if a, b := r.served.Agent.Requests(), r.served.Runtime.Requests(); a != 1 || b != 1 {
		t.Errorf("requests of the agent %d, and of the runtime %d", a, b)
	}
	r.must(r.Delete(bounded(t), "w", true))
	if left, _ := os.ReadDir(filepath.Join(r.theirMSB, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
	if _, err := os.Stat(r.workspaceDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace's folder is there still: %v", err)
	}
}

// The URL of the environment, for a provider that has none.
func TestTheAgentsURLOfTheEnvironment(t *testing.T) {
	r := newRemoteBench(t)
	url := strings.TrimSuffix(r.served.Agent.URL(), "/devsy-linux-amd64")
	r.write(strings.Replace(r.good, "downloadURL", "unknown", 1))
	r.must(r.ProviderAdd(bounded(t), r.manifest, "p", nil))
	r.Home.Extra = append(r.Home.Extra, "DEVSY_AGENT_URL="+url)
	_, err := r.up(subject.UpOptions{})
	r.must(err)
	if n := r.served.Agent.Requests(); n != 1 {
		t.Errorf("the agent was asked for %d times", n)
	}
	r.must(r.Delete(bounded(t), "w", true))
	r.Home.Extra = append(r.Home.Extra, "DEVSY_AGENT_URL=ftp://x")
	if _, err = r.up(subject.UpOptions{}); err == nil || !strings.Contains(err.Error(), `DEVSY_AGENT_URL: expected a URL of http or https without a query, seen "ftp://x"`) {
		t.Errorf("got %v", err)
	}
}

// What cannot be trusted is not run, makes no machine and leaves nothing.
func TestARemoteRuntimeThatCannotBeUsed(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	script := []byte("#!/bin/sh\ntouch " + mark + "\n")
	for name, c := range map[string]struct {
		content []byte // another one than the manifest says
		make    func(*remoteBench)
		want    string
	}{
		"another program":  {content: script, want: "expected SHA-256 %s, seen " + sum(script)},
		"one byte changed": {make: func(r *remoteBench) { r.served.Runtime.Misbehave(httpfixture.Tampered) }, want: "checksum of "},
		"truncated":        {make: func(r *remoteBench) { r.served.Runtime.Misbehave(httpfixture.Truncated) }, want: "the answer ended early"},
		"404":              {make: func(r *remoteBench) { r.served.Runtime.SetOffline(true) }, want: "expected the answer 200, seen 404 Not Found"},
		"no server":        {make: func(r *remoteBench) { r.must(r.served.Runtime.Close()) }, want: "connection refused"},
		"no msb": {make: func(r *remoteBench) {
			other := startSSHD(t, []string{"HOME=" + r.home, "PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"})
			r.write(strings.Replace(r.good, r.sshd.Addr().String(), other.Addr().String(), 1))
		}, want: "install msb"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemoteBench(t)
			if c.content != nil {
				served, err := servers.Start(netip.MustParseAddrPort("127.0.0.1:0"), "runtime", c.content)
				r.must(err)
				defer served.Close()
				r.write(strings.Replace(r.good, r.served.Runtime.URL(), served.URL(), 1))
				c.want = fmt.Sprintf(c.want, sum(r.binary))
			}
			if c.make != nil {
				c.make(r)
			}
			r.must(r.ProviderAdd(bounded(t), r.manifest, "p", nil))
			res, code := r.run("workspace", "up", "--id", "w", "--provider", "p", r.dir)
			if code != 1 || !strings.Contains(string(res.Stderr), c.want) || !bytes.Contains(res.Stdout, []byte(`"outcome":"error"`)) {
				t.Errorf("up: %d, %s, %s; want %q", code, res.Stdout, res.Stderr, c.want)
			}
			if made := r.askedThere("create"); len(made) > 0 {
				t.Errorf("msb was asked for %q", made)
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("it was run")
			}
			if name == "no msb" { // the runtime is right, and a record keeps it
				return
			}
			if _, err := os.Stat(r.workspaceDir()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the workspace's folder is there: %v", err)
			}
			if list, err := r.List(bounded(t)); err != nil || len(list) > 0 {
				t.Errorf("it left a workspace: %v, %v", list, err)
			}
		})
	}
}

// Between two commands the runtime there is changed: it is not run, and up brings the right one again.
func TestAChangedRemoteRuntimeIsNotRun(t *testing.T) {
	r := addedRemote(t)
	_, err := r.up(subject.UpOptions{})
	r.must(err)
	mark := filepath.Join(t.TempDir(), "mark")
	tampered := []byte("#!/bin/sh\ntouch " + mark + "\n")
	r.must(os.Remove(r.installed()))
	r.must(os.WriteFile(r.installed(), tampered, 0o755))
	for _, args := range [][]string{{"status", "w"}, {"stop", "w"}, {"ssh", "w", "--command", "true"}, {"delete", "w"}} {
		res, code := r.run(append([]string{"workspace"}, args...)...)
		if code != 1 || !strings.Contains(string(res.Stderr), "expected SHA-256 "+sum(r.binary)+", seen "+sum(tampered)) ||
			!strings.Contains(string(res.Stderr), `the remote of the provider "p": `) {
			t.Errorf("%v: %d, %s", args, code, res.Stderr)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the changed runtime was run")
	}
	_, err = r.up(subject.UpOptions{})
	r.must(err)
	r.must(r.Delete(bounded(t), "w", true))
	if n := r.served.Runtime.Requests(); n != 1 {
		t.Errorf("the runtime was asked for %d times", n)
	}
}

// An up that fails once the runtime was there, and before there is a record, removes it there.
func TestARemoteUpThatComesToNothing(t *testing.T) {
	r := addedRemote(t)
	r.devcontainer(`{}`)
	if _, err := r.up(subject.UpOptions{}); err == nil || !strings.Contains(err.Error(), `"image" is missing`) || r.served.Runtime.Requests() != 1 {
		t.Errorf("got %v", err)
	}
	r.devcontainer(`{"build": {"dockerfile": "Dockerfile"}}`)
	if _, err := r.up(subject.UpOptions{}); err == nil || !strings.Contains(err.Error(), "a Dockerfile and Features are not supported on a remote machine") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(r.workspaceDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace's folder is there: %v", err)
	}
}

// started starts a command of the CLI, which ends with the test.
func (r *remoteBench) started(args ...string) *proc.Process {
	r.Helper()
	p, err := proc.Start(bounded(r.T), proc.Cmd{Env: r.Environ(), Dir: r.Home.Dir, Argv: append(r.Argv[:2:2], args...)})
	r.must(err)
	r.Cleanup(p.Stop)
	return p
}

// dialling gives the process that is exec.command of a process.
func (r *remoteBench) dialling(of int) int {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", of, of))
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", of))
		for _, file := range all {
			text, _ := os.ReadFile(file)
			children = append(children, text...)
		}
		for _, child := range strings.Fields(string(children)) {
			if line, _ := os.ReadFile("/proc/" + child + "/cmdline"); bytes.Contains(line, []byte("\x00dial\x00")) {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	r.Fatal("exec.command does not run")
	return 0
}

// await waits until something holds.
func (r *remoteBench) await(what string, holds func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("never: %s", what)
		}
	}
}

// Whatever ends the connection, and whatever it is in the middle of, ends all that was begun there.
func TestALostConnection(t *testing.T) {
	for name, kill := range map[string]func(r *remoteBench, p *proc.Process){
		"ssh is killed":      func(r *remoteBench, p *proc.Process) { r.must(syscall.Kill(r.dialling(p.PID()), syscall.SIGKILL)) },
		"the CLI is killed":  func(r *remoteBench, p *proc.Process) { r.must(syscall.Kill(p.PID(), syscall.SIGKILL)) },
		"the CLI is told to": func(r *remoteBench, p *proc.Process) { r.must(syscall.Kill(p.PID(), syscall.SIGTERM)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := addedRemote(t)
			ends := func(p *proc.Process) {
				t.Helper()
				kill(r, p)
				res, err := p.Wait()
				if code, _ := proc.ExitCode(err); code == 0 {
					t.Errorf("it exited with code 0: %s", res.Stderr)
				}
				if name == "ssh is killed" && !strings.Contains(string(res.Stderr), "exec.command ended with code 137") {
					t.Errorf("it said %s", res.Stderr)
				}
				r.nothingRuns()
			}

			// While the runtime is downloaded.
			r.served.Runtime.Misbehave(httpfixture.Stalled)
			p := r.started("workspace", "up", "--id", "w", "--provider", "p", r.dir)
			r.await("a download", func() bool { return r.served.Runtime.Requests() > 0 })
			ends(p)
			r.served.Runtime.Misbehave(nil)

			// While a machine is made.
			hang, hanging := filepath.Join(r.theirMSB, "hang"), filepath.Join(r.theirMSB, "hanging")
			r.must(os.WriteFile(hang, nil, 0o644))
			p = r.started("workspace", "up", "--id", "w", "--provider", "p", r.dir)
			var msb int
			r.await("a machine is made", func() bool {
				text, _ := os.ReadFile(hanging)
				msb, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return msb > 0
			})
			ends(p)
			r.await("the end of msb", func() bool { return errors.Is(syscall.Kill(msb, 0), syscall.ESRCH) })
			r.must(os.Remove(hang))

			// While a command runs in the machine.
			_, err := r.up(subject.UpOptions{})
			r.must(err)
			p = r.started("workspace", "ssh", "w", "--command", "echo $$ >/dev/shm/parity-"+filepath.Base(r.home)+"; exec sleep 600")
			var guest int
			file := "/dev/shm/parity-" + filepath.Base(r.home)
			t.Cleanup(func() { os.Remove(file) })
			r.await("a command runs", func() bool {
				text, _ := os.ReadFile(file)
				guest, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return guest > 0
			})
			ends(p)
			r.await("the end of the command", func() bool { return errors.Is(syscall.Kill(guest, 0), syscall.ESRCH) })
			r.must(r.Delete(bounded(t), "w", true))
		})
	}
}

// The runtime is killed there: the CLI says so.
func TestTheRemoteRuntimeIsKilled(t *testing.T) {
	r := addedRemote(t)
	_, err := r.up(subject.UpOptions{})
	r.must(err)
	p := r.started("workspace", "ssh", "w", "--command", "exec sleep 600")
	r.await("the command runs", func() bool { return len(r.askedThere("exec")) == 2 })
	for _, link := range r.running() {
		if strings.HasSuffix(link, "/runtime") {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			r.must(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	res, err := p.Wait()
	if code, _ := proc.ExitCode(err); code != 1 || !strings.Contains(string(res.Stderr), "the runtime ended: ") || !strings.Contains(string(res.Stderr), "(killed)") {
		t.Errorf("%v: %s", err, res.Stderr)
	}
	r.nothingRuns()
	r.must(r.Delete(bounded(t), "w", true))
}

// Each fault of a restart does what it says, and no more.
func TestRemoteFaults(t *testing.T) {
	type seen struct {
		up, again, agent, runtime, replaced, mode, here string
	}
	right := seen{up: "ok", again: "ok", agent: "1", runtime: "1", replaced: "false", mode: "-rwxr-xr-x", here: "false"}
	for asked, change := range map[fault.Fault]func(*seen){
		"":                           func(*seen) {},
		fault.AgentHere:              func(s *seen) { *s = seen{up: "no", agent: "1", runtime: "1", here: "true"} }, // there is no msb here
		fault.AgentNotDownloaded:     func(s *seen) { s.agent = "0" },
		fault.RuntimeDownloadedAgain: func(s *seen) { s.runtime = "2" },
		fault.RuntimeReplaced:        func(s *seen) { s.replaced = "true" },
		fault.RuntimeModeLost:        func(s *seen) { s.mode = "-rwx------" },
		fault.RuntimeFromCache:       func(s *seen) { s.again = "no" },
	} {
		t.Run(string("fault "+asked), func(t *testing.T) {
			r := addedRemote(t)
			r.Home.Extra = append(r.Home.Extra, fault.Env+"="+string(asked))
			outcome := func(err error) string {
				if err != nil {
					t.Log(err)
					return "no"
				}
				return "ok"
			}
			var got seen
			_, err := r.up(subject.UpOptions{})
			got.up = outcome(err)
			before, err := os.Open(r.installed())
			got.here = strconv.FormatBool(err != nil)
			if err == nil {
				defer before.Close() // or its inode could be another's
				info, _ := before.Stat()
				r.must(r.Stop(bounded(t), "w"))
				r.served.Runtime.SetOffline(true)
				r.must(os.RemoveAll(r.cache()))
				_, err = r.up(subject.UpOptions{})
				got.again = outcome(err)
				after, err := os.Lstat(r.installed())
				r.must(err)
				got.replaced, got.mode = strconv.FormatBool(!os.SameFile(info, after)), after.Mode().String()
			}
			got.agent, got.runtime = fmt.Sprint(r.served.Agent.Requests()), fmt.Sprint(r.served.Runtime.Requests())
			want := right
			change(&want)
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// Each fault with a runtime of another checksum does what it says, and no more.
func TestRemoteChecksumFaults(t *testing.T) {
	for asked, want := range map[fault.Fault]string{
		"":                              "named",
		fault.RuntimeExecutedUnverified: "named executed",
		fault.ChecksumUnchecked:         "executed",
		fault.ChecksumUnnamed:           "",
	} {
		t.Run(string("fault "+asked), func(t *testing.T) {
			r := newRemoteBench(t)
			mark := filepath.Join(t.TempDir(), "mark")
			served, err := servers.Start(netip.MustParseAddrPort("127.0.0.1:0"), "runtime", []byte("#!/bin/sh\ntouch "+mark+"\n"))
			r.must(err)
			defer served.Close()
			r.write(strings.Replace(r.good, r.served.Runtime.URL(), served.URL(), 1))
			r.Home.Extra = append(r.Home.Extra, fault.Env+"="+string(asked))
			r.must(r.ProviderAdd(bounded(t), r.manifest, "p", nil))
			_, err = r.up(subject.UpOptions{})
			var got []string
			if err == nil {
				t.Error("up succeeded")
			} else if strings.Contains(err.Error(), "checksum of ") {
				got = append(got, "named")
			}
			if _, err := os.Stat(mark); err == nil {
				got = append(got, "executed")
			}
			if strings.Join(got, " ") != want {
				t.Errorf("got %q, want %q: %v", got, want, err)
			}
			if _, err := os.Stat(r.workspaceDir()); err == nil {
				t.Error("the workspace's folder is there")
			}
		})
	}
}
