//go:build microvm

package step_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/link"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// BenchmarkOverhead runs the cases of `parity egress` one after another in this lab and writes down every msb command that they make. A plain
// shell loop then makes the same create, exec, stop, start and remove commands again, with nothing of Parity around them. It reports
// the ratio of the two wall times in one run. docs/performance.md says how to run it.
func BenchmarkOverhead(b *testing.B) {
	programs := os.Getenv("PARITY_BIN") // the folder with parity, parity-probe and parity-agent
	if programs == "" || os.Getenv(lab.EnvScratch) == "" {
		b.Fatal("run it in a lab, with PARITY_BIN set to the folder of Parity's programs")
	}
	cache, err := lab.CacheDir()
	if err != nil {
		b.Fatal(err)
	}
	real := msb.PinnedRelease().Path(cache)
	for range b.N {
		dir, err := os.MkdirTemp(os.Getenv(lab.EnvScratch), "o")
		if err != nil {
			b.Fatal(err)
		}
		b.Setenv(lab.EnvScratch, filepath.Join(dir, "s"))
		if err := os.Mkdir(filepath.Join(dir, "s"), 0o755); err != nil {
			b.Fatal(err)
		}
		shim := filepath.Join(dir, "msb")
		script := fmt.Sprintf(`#!/bin/sh
for a in "$@"; do printf "%%s\t" "$a"; done >>%[1]s/trace; echo >>%[1]s/trace
[ "$1" != load ] || cp "$3" %[1]s/image.tar
exec %[2]s "$@"
`, dir, real)
		if err := os.WriteFile(shim, []byte(script), 0o755); err != nil {
			b.Fatal(err)
		}
		harness, apart := runCases(b, programs, shim)
		msbAlone, counts := replay(b, dir, real)
		b.ReportMetric(harness.Seconds(), "harness-s")
		b.ReportMetric(msbAlone.Seconds(), "msb-alone-s")
		b.ReportMetric(float64(harness)/float64(msbAlone), "ratio")
		for name, d := range apart {
			b.ReportMetric(d.Seconds(), strings.ReplaceAll(name, " ", "-")+"-s")
		}
		b.Logf("operations of the shell loop: %v", counts)
	}
}

// runCases runs the cases and gives their wall time without image builds and uploads, which it gives apart.
func runCases(b *testing.B, programs, shim string) (harness time.Duration, apart map[string]time.Duration) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- step.Run(b.Context(), step.Options{
			RunID: "overhead", MSB: shim, Probe: filepath.Join(programs, "parity-probe"),
			Subject: []string{filepath.Join(programs, "parity"), "devsy"},
			Cases:   []string{"contract/builtin/cli", "egress/builtin/public", "egress/builtin/deny"},
		}, w)
		w.Close()
	}()
	apart = map[string]time.Duration{}
	for dec := json.NewDecoder(r); ; {
		var e report.Event
		if err := dec.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			b.Fatal(err)
		}
		if e.Kind != report.CaseDone {
			continue
		}
		if e.Result.Verdict != report.Pass {
			b.Fatalf("%s did not pass: %+v", e.Case, e.Result.Checks)
		}
		harness += e.Result.Elapsed
		for _, op := range e.Result.Operations {
			if op.Name == "image build" || op.Name == "upload" {
				apart[op.Name] += op.Elapsed
				harness -= op.Elapsed
			}
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return harness, apart
}

// replay makes the traced operations again in a shell loop and gives its wall time. An exec is of /bin/true: in the trace it is the
// agent of an SSH session.
func replay(b *testing.B, dir, real string) (time.Duration, map[string]int) {
	trace, err := os.ReadFile(filepath.Join(dir, "trace"))
	if err != nil {
		b.Fatal(err)
	}
	counts := map[string]int{}
	var loop strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(string(trace)), "\n") {
		args := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
		switch args[0] {
		case "create", "stop", "start", "remove":
		case "exec":
			args = append(args[:4:4], "--", "/bin/true")
		default:
			continue
		}
		counts[args[0]]++
		// The contract has a create fail, of an image that cannot be found, and removes what is not there.
		failing := args[0] == "remove" || args[0] == "create" && !strings.HasPrefix(args[len(args)-1], "parity.test/base:")
		fmt.Fprintf(&loop, "%s %s </dev/null >/dev/null 2>&1 || %t || echo 'failed: %s'\n", real, strings.Join(args, " "), failing, args[0])
	}
	l, err := link.New(link.Options{Name: "overhead", Address: netip.MustParsePrefix("203.0.113.30/24")})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	env := append(os.Environ(), "MSB_HOME="+filepath.Join(dir, "m"))
	load := exec.Command(real, "load", "--input", filepath.Join(dir, "image.tar"))
	load.Env = env
	if out, err := load.CombinedOutput(); err != nil {
		b.Fatalf("load: %v: %s", err, out)
	}
	shell := exec.Command("sh", "-c", loop.String())
	shell.Env = env
	started := time.Now()
	out, err := shell.CombinedOutput()
	if err != nil || strings.Contains(string(out), "failed") {
		b.Fatalf("the shell loop: %v: %s", err, out)
	}
	return time.Since(started), counts
}
