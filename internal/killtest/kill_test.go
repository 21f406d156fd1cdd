package killtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// stepsOf gives the named steps of an egress case that a run is killed at, as its progress shows them: each fixture, what is done to the
// workspaces, SSH, the probe program and the proof itself, the first check of each phase, and the last check of all.
func stepsOf(t *testing.T, id string) []string {
	t.Helper()
	c, ok := step.Catalogue().ByID(id)
	if !ok {
		t.Fatalf("the catalogue has no case %s", id)
	}
	var list []string
	for i, k := range c.Checks {
		named := strings.HasPrefix(k.Name, "fixture/") || strings.HasPrefix(k.Name, "workspace/") ||
			k.Phase == catalogue.Created && slices.Contains([]string{"ssh", "probe", "control-probe-before"}, k.Name) ||
			k.Phase == catalogue.Recreated && k.Name == "deny"
		if named || i == 0 || i == len(c.Checks)-1 || c.Checks[i-1].Phase != k.Phase {
			list = append(list, id+" "+report.Check{Phase: k.Phase, Name: k.Name}.FullName())
		}
	}
	return list
}

// starter starts a run, and awaiter waits for the moment at which it is killed.
type (
	starter func(*testing.T, *exec.Cmd) *running
	awaiter func(*testing.T, *running)
)

// moment is a moment at which a run of a scenario is killed. Its watch is called before the run is started.
type moment struct {
	name, scenario string
	watch          func(*testing.T, *world) (starter, awaiter)
}

// onTerminal is when the progress line on a terminal shows that a check has begun.
func onTerminal(scenario, check string) moment {
	return moment{check, scenario, func(*testing.T, *world) (starter, awaiter) {
		return startOnTerminal, func(t *testing.T, r *running) { r.awaitSaid(t, check) }
	}}
}

// onLine is when a line was printed.
func onLine(name, scenario, text string) moment {
	return moment{name, scenario, func(*testing.T, *world) (starter, awaiter) {
		return start, func(t *testing.T, r *running) { r.awaitSaid(t, text) }
	}}
}

// onFile is when a file whose name begins so is made in a folder.
func onFile(name, scenario string, dir func(*world) string, prefix string) moment {
	return moment{name, scenario, func(t *testing.T, w *world) (starter, awaiter) { return start, watchFolder(t, dir(w), prefix) }}
}

func moments(t *testing.T) []moment {
	cache := func(w *world) string { return w.cache }
	reports := func(w *world) string { return w.report }
	list := []moment{
		onFile("the run's folder", "contract", cache, "run-"),
		onFile("report/prepare", "contract", reports, ".parity-writable-"),
		onFile("a lab's folder", "contract", cache, "lab-"),
		onLine("a lab's step", "contract", "started  KVM native"),
		onTerminal("contract", "contract/builtin/cli workspace ssh: --stdio"),
		onTerminal("egress", "egress/builtin/public created public"),
	}
	for _, s := range stepsOf(t, "egress/builtin/deny") {
		list = append(list, onTerminal("egress", s))
	}
	return append(list,
		onLine("clean-up", "egress", "egress/builtin/deny  receipts  pass"),
		onLine("a lab's end", "contract", "contract/builtin/cli  PASS"),
		onFile("report/junit.xml", "contract", reports, ".junit.xml"),
		onFile("report/summary.md", "contract", reports, ".summary.md"),
		onFile("report/report.json", "contract", reports, ".report.json"),
	)
}

func TestRunKilledAtAnyStepLeavesNothingOnceTheNextOneHasPassed(t *testing.T) {
	w := newWorld(t)
	w.plantDecoys(t)
	w.passes(t, "contract", "--standin", "--provider", "builtin", "--report", w.report)
	before := w.look(t)
	for i, m := range moments(t) {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			w.killAt(t, m, i%2 == 0)
			// The contract is the shortest run, and cleans as any other does.
			w.passes(t, "contract", "--standin", "--provider", "builtin", "--report", w.report)
			w.unchanged(t, before)
		})
	}
	w.passes(t, "egress", "--standin", "--provider", "builtin", "--report", w.report)
	w.unchanged(t, before)
}

// killAt kills a run at a moment: its whole process group, or the process alone. Some moments come milliseconds before the end, and a run can
// be faster than the kill: then there is another one.
func (w *world) killAt(t *testing.T, m moment, alone bool) {
	t.Helper()
	const attempts = 10
	for range attempts {
		begin, await := m.watch(t, w)
		r := begin(t, w.command(m.scenario, "--standin", "--verbose", "--provider", "builtin", "--report", w.report))
		await(t, r)
		if alone {
			r.kill()
		} else {
			r.killGroup()
		}
		if r.killed() {
			return
		}
		if code := r.wait(t); code != 0 {
			t.Fatalf("it was not killed, and its exit code is %d\n%s", code, r.said())
		}
	}
	t.Fatalf("in %d attempts, each run was faster than the kill", attempts)
}

// A run that is killed while its remote machine is up takes the machine, and the engine that this runs in, with it.
func TestRunKilledWithItsRemoteMachineUpLeavesNothing(t *testing.T) {
	w := newWorld(t)
	shared, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, extracted := range []string{string(docker.ProgramsIn(shared)), string(remote.RootIn(shared))} {
		if err := os.Symlink(extracted, filepath.Join(w.cache, filepath.Base(extracted))); err != nil {
			t.Fatal(err)
		}
	}
	w.passes(t, "contract", "--standin", "--provider", "builtin", "--report", w.report)
	before := w.look(t)
	for _, check := range []string{"fixture/artifacts", "created ssh"} {
		r := startOnTerminal(t, w.command("remote-agent", "--standin", "--report", w.report))
		r.awaitSaid(t, "remote-agent/external/delivery "+check)
		r.kill()
		if !r.killed() {
			t.Fatalf("it was not killed\n%s", r.said())
		}
		w.passes(t, "contract", "--standin", "--provider", "builtin", "--report", w.report)
		w.unchanged(t, before)
	}
}

// A run outlives its labs: one that is killed below it makes it inconclusive, and it cleans by itself.
func TestRunWhoseLabIsKilledSaysSoAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	before := w.look(t)
	r := startOnTerminal(t, w.command("egress", "--standin", "--provider", "builtin", "--report", w.report))
	r.awaitSaid(t, "egress/builtin/deny created workspace/up")
	boxes := childrenOf(t, r.cmd.Process.Pid)
	if len(boxes) == 0 {
		t.Fatal("the run has no lab")
	}
	for _, pid := range boxes {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if code := r.wait(t); code != 3 {
		t.Errorf("the exit code is %d\n%s", code, r.said())
	}
	got, err := report.Read(w.report)
	if err != nil || got.Verdict != report.Inconclusive || !strings.Contains(got.Sentence(), "the lab died (signal: killed)") {
		t.Errorf("the report says %s: %s (%v)", got.Verdict, got.Sentence(), err)
	}
	w.removeReport(t)
	w.unchanged(t, before)
}

// plantDecoys makes things of a stranger's that look as if a run had made them. The test's own look tells if one is touched.
func (w *world) plantDecoys(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"c/lab-1/notes", "c/lab-notes/file", "c/run-2/report", "c/disk-3", "c/lab-4", "other/.report.json5",
		"report/.report.json.bak", "report/.junit.xml7.orig", "report/parity-writable-8", "report/notes.md", "c/kernel/vmlinuz"} {
		path := filepath.Join(w.dir, name)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte("a stranger's"), 0o644))
	}
	must(os.Symlink(w.other, filepath.Join(w.cache, "lab-6")))
	must(os.Symlink("notes.md", filepath.Join(w.report, ".summary.md9")))

	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "parity-decoy"}}
	if err := netlink.LinkAdd(link); err != nil { // a kernel without dummy interfaces
		must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: link.Name}}))
	}
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(link.Name); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	must(addTable("parity-decoy"))
	t.Cleanup(func() { _ = deleteTable("parity-decoy") })

	socket, err := net.Listen("unix", "@parity-root-decoy")
	must(err)
	t.Cleanup(func() { socket.Close() })

	stranger := exec.Command("/bin/sleep", "3600")
	stranger.Args[0] = "parity lab-box"
	stranger.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Setsid: true}
	must(stranger.Start())
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
}

func addTable(name string) error {
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	c.AddChain(&nftables.Chain{Name: "chain", Table: table})
	return c.Flush()
}

func deleteTable(name string) error {
	c := &nftables.Conn{}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	return c.Flush()
}

// A comparison that cannot fail proves nothing: something of each kind is left, one at a time, and the comparison names its kind.
func TestComparisonFindsALeftoverOfEachKind(t *testing.T) {
	w := newWorld(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	process := func(attr *syscall.SysProcAttr) (undo func()) {
		c := exec.Command("/bin/sleep", "3600")
		c.SysProcAttr = attr
		must(c.Start())
		return func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	folder := filepath.Join(w.other, "folder")
	must(os.Mkdir(folder, 0o755))
	file := filepath.Join(w.other, "file")
	must(os.WriteFile(file, []byte("as it was"), 0o644))
	for _, plant := range []struct {
		kind string
		more []string // kinds that such a thing has as well
		make func() (undo func())
	}{
		{processes, nil, func() func() { return process(nil) }},
		{namespaces, []string{processes}, func() func() { return process(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}) }},
		{mounts, []string{files}, func() func() {
			must(unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=0700"))
			return func() { must(unix.Unmount(folder, 0)) }
		}},
		{interfaces, nil, func() func() {
			must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "left"}}))
			return func() {
				l, err := netlink.LinkByName("left")
				must(err)
				must(netlink.LinkDel(l))
			}
		}},
		{rules, nil, func() func() {
			must(addTable("left"))
			return func() { must(deleteTable("left")) }
		}},
		{sockets, nil, func() func() {
			l, err := net.Listen("unix", "@left")
			must(err)
			return func() { l.Close() }
		}},
		{sockets, nil, func() func() {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(err)
			return func() { l.Close() }
		}},
		{files, nil, func() func() {
			must(os.Mkdir(filepath.Join(w.cache, "left"), 0o755))
			return func() { must(os.Remove(filepath.Join(w.cache, "left"))) }
		}},
		{files, nil, func() func() { // in a folder that all programs share
			path := filepath.Join(shared[0], "left")
			must(os.WriteFile(path, nil, 0o644))
			return func() { must(os.Remove(path)) }
		}},
		{files, nil, func() func() { // something that is gone
			must(os.Remove(file))
			return nil
		}},
	} {
		before := w.look(t)
		undo := plant.make()
		want := append(slices.Clone(plant.more), plant.kind)
		slices.Sort(want)
		list := diff(before, w.look(t))
		if got := kindsOf(list); !slices.Equal(got, want) {
			t.Errorf("left was a %s, and the comparison shows %q: %q", plant.kind, got, list)
		}
		if undo != nil {
			undo()
			w.unchanged(t, before)
		}
	}
	must(os.WriteFile(file, []byte("as it was"), 0o644))
	before := w.look(t)
	must(os.WriteFile(file, []byte("was it as"), 0o644))
	if list := diff(before, w.look(t)); len(list) != 2 {
		t.Errorf("a file was changed, and the comparison shows %q", fmt.Sprint(list))
	}
}
