package killtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"dagger/parity/internal/report"
)

func TestFourRunsAtOncePassAndCleanTouchesNoneOfThem(t *testing.T) {
	w := newWorld(t)
	before := w.look(t)
	var runs []*running
	reports := make([]string, 4)
	for i := range reports {
		reports[i] = filepath.Join(w.report, fmt.Sprint(i))
		runs = append(runs, start(t, w.command("egress", "--standin", "--verbose", "--provider", "builtin", "--report", reports[i])))
	}
	done := make(chan struct{})
	var cleaning sync.WaitGroup
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	cleaning.Go(func() {
		for n := 1; ; n++ {
			stdout, err := w.command("clean").CombinedOutput()
			if err != nil || !strings.HasPrefix(string(stdout), "nothing to remove") {
				t.Errorf("while the runs were alive, clean said %q (%v)", stdout, err)
			}
			select {
			case <-done:
				t.Logf("%d clean-ups meanwhile", n)
				return
			case <-pace.C:
			}
		}
	})
	runs[0].awaitSaid(t, "started  KVM native")
	// Two runs cannot write one report: the second one is refused, and the first one goes on.
	if out, err := w.command("contract", "--standin", "--provider", "builtin", "--report", reports[0]).CombinedOutput(); err == nil || !strings.Contains(string(out), "another run that has not ended writes its report") {
		t.Errorf("a second run took the report's folder of one that is alive: %v, %s", err, out)
	}
	ids := map[string]bool{}
	for i, r := range runs {
		if code := r.wait(t); code != 0 {
			t.Errorf("run %d: code %d\n%s%s", i, code, r.said(), r.stdout.String())
			continue
		}
		got, err := report.Read(reports[i])
		if err != nil || got.Verdict != report.Pass || len(got.Cases) != 3 {
			t.Errorf("run %d: %v, %s with %d cases", i, err, got.Verdict, len(got.Cases))
		}
		ids[got.Head.RunID] = true
		if strings.Contains(r.said(), "removed") {
			t.Errorf("run %d removed something at its start:\n%s", i, r.said())
		}
	}
	close(done)
	cleaning.Wait()
	if len(ids) != len(runs) {
		t.Errorf("the runs have the ids %v", ids)
	}
	for _, dir := range reports {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	w.unchanged(t, before)
}

// What each kind of killed run leaves is printed, once, and nothing else is touched.
func TestCleanPrintsEachThingThatItRemoved(t *testing.T) {
	w := newWorld(t)
	if stdout, _ := w.passes(t, "clean"); !strings.HasPrefix(stdout, "nothing to remove") {
		t.Errorf("of a new cache folder, clean said %q", stdout)
	}
	w.plantDecoys(t)
	before := w.look(t)
	r := start(t, w.command("contract", "--standin", "--verbose", "--provider", "builtin", "--report", w.report))
	r.awaitSaid(t, "contract/builtin/cli  started")
	r.kill()
	want := w.left(t, "lab-*", "run-*")
	// What a kill within a millisecond leaves, made by hand: half-written report files, and a disk that has not lost its name yet.
	for _, path := range []string{filepath.Join(w.report, ".report.json123"), filepath.Join(w.report, ".parity-writable-456"), filepath.Join(w.cache, "disk-789")} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		want[path] = true
	}
	if len(want) != 5 {
		t.Errorf("left are %v", want)
	}
	stdout, _ := w.passes(t, "clean")
	for line := range strings.Lines(stdout) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "removed ")
		if !ok || !want[path] {
			t.Errorf("clean said %q", line)
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("clean said nothing of %v:\n%s", want, stdout)
	}
	w.unchanged(t, before)
	if stdout, _ := w.passes(t, "clean"); !strings.HasPrefix(stdout, "nothing to remove") {
		t.Errorf("the second time, clean said %q", stdout)
	}
}

// left lists what there is in the cache by these names, save the decoys.
func (w *world) left(t *testing.T, patterns ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, pattern := range patterns {
		list, err := filepath.Glob(filepath.Join(w.cache, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range list {
			if len(filepath.Base(path)) > len("lab-notes") {
				found[path] = true
			}
		}
	}
	return found
}
