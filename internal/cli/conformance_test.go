package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/conformance"
	"dagger/parity/internal/report"
	"dagger/parity/internal/runtimefake"
)

// conform runs `parity conformance` on a fake runtime.
func conform(t *testing.T, fault runtimefake.Fault, args ...string) result {
	t.Helper()
	runtime := filepath.Join(t.TempDir(), "runtime")
	build := exec.Command("go", "build", "-o", runtime, "dagger/parity/internal/runtimefake/program")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	state := t.TempDir()
	return parity(t, func(c *exec.Cmd) {
		c.Env = append(os.Environ(), runtimefake.EnvState+"="+state, runtimefake.EnvFault+"="+string(fault))
	}, append([]string{"conformance", "--runtime", runtime, "--image", "image:1"}, args...)...)
}

func TestConformanceOfARightRuntime(t *testing.T) {
	r := conform(t, "")
	if r.code != 0 || strings.Count(r.stdout, "pass ") != len(conformance.Names()) || !strings.Contains(r.stderr, " pass, 0 fail, 0 inconclusive, 0 not reached") {
		t.Errorf("code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

func TestConformanceOfAWrongRuntime(t *testing.T) {
	r := conform(t, runtimefake.ExecMergesStderr)
	for _, want := range []string{"fail         Exec: standard error is apart\n", `expected "out" as stdout, and "err" as stderr`, `seen     "outerr" as stdout, and "" as stderr`} {
		if r.code != 1 || !strings.Contains(r.stdout, want) {
			t.Errorf("code %d, no %q in\n%s%s", r.code, want, r.stdout, r.stderr)
		}
	}
	// The report names each rule, and the one that is broken.
	dir := filepath.Join(t.TempDir(), "report")
	r = conform(t, runtimefake.ExecMergesStderr, "--report", dir)
	got, err := report.Read(dir)
	if err != nil || r.code != 1 || got.ExitCode != 1 || got.Verdict != report.Fail || len(got.Problems) > 0 || len(got.Cases) != 1 ||
		len(got.Cases[0].Checks) != len(conformance.Names()) {
		t.Fatalf("code %d, %v, %+v", r.code, err, got)
	}
	for _, k := range got.Cases[0].Checks {
		if k.Verdict == report.Fail != (k.Name == "Exec: standard error is apart") {
			t.Errorf("%s: %s", k.Name, k.Verdict)
		}
	}
	// What stands on the start is not reached, and that is no pass.
	r = conform(t, runtimefake.CrashBeforeHandshake, "--json")
	verdicts := map[conformance.Verdict]int{}
	for line := range strings.Lines(r.stdout) {
		var one conformance.Result
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		verdicts[one.Verdict]++
	}
	if r.code != 1 || verdicts[conformance.Fail] != 1 || verdicts[conformance.Pass] != 0 || verdicts[conformance.NotReached] != len(conformance.Names())-1 {
		t.Errorf("code %d, %v", r.code, verdicts)
	}
}

func TestConformanceThatIsEndedIsNoPass(t *testing.T) {
	if r := conform(t, runtimefake.LogsNeverEnd, "--timeout", "3s"); r.code != 3 || !strings.Contains(r.stdout, "the run was ended: the deadline of 3s passed (--timeout)") {
		t.Errorf("code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

func TestConformanceUsage(t *testing.T) {
	for args, want := range map[string]string{
		"conformance":             "--runtime and --image: both are needed",
		"conformance --runtime x": "--runtime and --image: both are needed",
		"conformance --runtime x --image y --timeout 0s":   "--check-timeout and --timeout must be above 0",
		"conformance --runtime x --image y something more": "unknown command",
	} {
		if r := parity(t, nil, strings.Fields(args)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: code %d, %s", args, r.code, r.stderr)
		}
	}
	if r := parity(t, nil, "conformance", "--list"); r.code != 0 || !strings.Contains(r.stdout, "Exec: exit codes\n") {
		t.Errorf("--list: code %d, %s", r.code, r.stdout)
	}
	r := parity(t, nil, "conformance", "--runtime", "/bin/true", "--image", "x")
	if r.code != 1 || !strings.Contains(r.stdout, "fail         process: it runs until its handshake") {
		t.Errorf("a program that is no runtime: code %d, %s", r.code, r.stdout)
	}
}
