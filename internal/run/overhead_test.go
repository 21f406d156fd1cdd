package run_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
	"dagger/parity/internal/step"
)

// BenchmarkOverhead runs the cases of `parity egress` as a user's run does, for each provider, in as many labs as it takes by itself, and
// writes down every msb command of them. A plain shell loop in a lab then makes the same create, exec, stop, start and remove commands
// again, with nothing of Parity around them. It reports what a run takes over that loop, and over the built-in provider's run.
// docs/performance.md says how to run it.
func BenchmarkOverhead(b *testing.B) {
	cache, err := lab.CacheDir()
	if err != nil {
		b.Fatal(err)
	}
	programs := b.TempDir()
	if err := labtest.Build(programs, "dagger/parity/cmd/..."); err != nil {
		b.Fatal(err)
	}
	real := msb.PinnedRelease().Path(cache)
	decision, err := lab.Decide(b.Context(), lab.Auto, lab.Checks{
		Doctor: (&msb.Client{Path: real, Home: b.TempDir()}).Doctor,
		Trial:  []string{filepath.Join(programs, "parity"), "trial", "--msb", real}, Cache: cache,
	})
	if err != nil {
		b.Fatal(err)
	}
	kvm := decision.KVM
	for range b.N {
		walls := map[string]time.Duration{}
		for _, provider := range []string{catalogue.Builtin, catalogue.External} {
			side := runTraced(b, cache, programs, real, kvm, provider)
			alone := replay(b, cache, real, kvm, side.trace)
			walls[provider] = side.wall
			b.ReportMetric(alone.Seconds(), provider+"-msb-alone-s")
			b.ReportMetric(side.wall.Seconds(), provider+"-run-s")
			b.ReportMetric(float64(side.wall)/float64(alone), provider+"-ratio")
			for name, d := range side.apart {
				b.ReportMetric(d.Seconds(), provider+"-"+strings.ReplaceAll(name, " ", "-")+"-s")
			}
		}
		b.ReportMetric(float64(walls[catalogue.External])/float64(walls[catalogue.Builtin]), "external/builtin")
	}
}

// traced is what a run took.
type traced struct {
	wall  time.Duration            // of the lab that took longest, without its boot and what is apart
	apart map[string]time.Duration // image builds and uploads, of all labs
	trace []string                 // the msb commands, one a line, the arguments quoted for a shell
}

// runTraced runs the cases with an msb that writes down how it is called and then is the real one.
func runTraced(b *testing.B, cache, programs, real string, kvm lab.KVM, provider string) traced {
	dir := b.TempDir()
	calls := filepath.Join(dir, "calls") // copied out of the labs
	shim := fmt.Sprintf(`#!/bin/sh
case $1 in create | exec | start | stop | remove)
	mkdir -p %[1]s
	read -r boot </proc/sys/kernel/random/boot_id
	line=$(printf '%%s\t' "$@")
	echo "$line" >>%[1]s/$boot
	;;
esac
exec %[2]s "$@"
`, calls, real)
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "msb"), []byte(shim), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(filepath.Dir(real), "../lib"), filepath.Join(dir, "lib")); err != nil { // msb looks for it beside
		b.Fatal(err)
	}
	selected, err := step.Catalogue().Select("egress", []string{provider})
	if err != nil {
		b.Fatal(err)
	}
	tools, err := run.FindTools(b.Context(), run.ToolOptions{
		Programs: programs, Cache: cache, MicroSandbox: dir, External: provider == catalogue.External, Folder: b.TempDir(),
	})
	if err != nil {
		b.Fatal(err)
	}
	p := progress.New(io.Discard, progress.Style{}, time.Now())
	defer p.Close()
	r, err := run.Run(b.Context(), run.Options{
		Version: "benchmark", Cases: selected, KVM: lab.Decision{KVM: kvm}, Tools: tools, Report: b.TempDir(),
		Lab: lab.Options{Cache: cache, Report: calls},
	}, p, nil)
	if err != nil || r.Verdict != report.Pass {
		_ = report.Table(os.Stderr, r, report.TableStyle{Width: 120, Verbose: true})
		b.Fatalf("the run: %v, %s", err, r.Sentence())
	}
	t := traced{apart: map[string]time.Duration{}}
	for _, l := range r.Labs {
		wall := l.Total - l.Boot
		for _, c := range r.Cases {
			for _, op := range c.Operations {
				for _, id := range l.Cases {
					if c.ID == id && (op.Name == "image build" || op.Name == "upload") {
						wall -= op.Elapsed
						t.apart[op.Name] += op.Elapsed
					}
				}
			}
		}
		b.Logf("lab %q with %v: %s after its boot and what is apart, which took %s", l.Name, l.Cases, wall.Round(time.Second), (l.Total - wall).Round(time.Second))
		t.wall = max(t.wall, wall)
	}
	files, err := filepath.Glob(filepath.Join(calls, "*"))
	if err != nil || len(files) == 0 {
		b.Fatalf("no msb command was written down: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		t.trace = append(t.trace, strings.Split(strings.TrimSpace(string(content)), "\n")...)
	}
	return t
}

// replay makes the traced operations again in a shell loop in a lab, and gives its wall time. An exec is of /bin/true: in the trace it
// is the agent of an SSH session.
func replay(b *testing.B, cache, real string, kvm lab.KVM, trace []string) time.Duration {
	img, err := images.Build(images.Spec{Nonce: "replay"})
	if err != nil {
		b.Fatal(err)
	}
	const ref = "parity.test/replay:1"
	archive := filepath.Join(b.TempDir(), "image.tar")
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		b.Fatal(err)
	}
	var loop strings.Builder
	fmt.Fprintf(&loop, `set -e
export MSB_HOME=$PARITY_SCRATCH/m MSB=%s
mkdir $MSB_HOME
ip link add replay type dummy 2>/dev/null || ip link add replay type bridge
ip addr add 203.0.113.30/24 dev replay; ip link set replay up; ip link set lo up; ip route add default dev replay
$MSB load --input %s >/dev/null 2>&1
began=$(date +%%s%%N)
`, real, archive)
	counts := map[string]int{}
	for _, line := range trace {
		args := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
		image := args[len(args)-1]
		failing := args[0] == "remove" // the contract removes what is not there
		switch args[0] {
		case "create":
			if failing = !strings.HasPrefix(image, "parity.test/base:"); !failing { // and creates from an image that cannot be found
				args[len(args)-1] = ref
			}
		case "exec":
			args = append(slices.Clone(args[:slices.Index(args, "--")+1]), "/bin/true")
		case "stop", "start", "remove":
		default:
			continue
		}
		counts[args[0]]++
		fmt.Fprintf(&loop, "$MSB %s </dev/null >/dev/null 2>&1 || %t || echo 'failed: %s'\n", shellescape.QuoteCommand(args), failing, args[0])
	}
	loop.WriteString("echo took $((($(date +%s%N) - began) / 1000000))\n")
	var out bytes.Buffer
	res, err := lab.Run(b.Context(), lab.Options{
		KVM: kvm, Argv: []string{"sh", "-c", loop.String()}, Env: os.Environ(), Dir: "/", Stdout: &out, Stderr: &out, Cache: cache,
	})
	var millis int64
	_, took, _ := strings.Cut(out.String(), "took ")
	if strings.Contains(out.String(), "failed: ") {
		b.Errorf("the shell loop: %s", out.String())
	}
	if _, scanErr := fmt.Sscan(took, &millis); err != nil || res.ExitCode != 0 || scanErr != nil {
		b.Fatalf("the shell loop: %v, exit code %d, %q", err, res.ExitCode, out.String())
	}
	b.Logf("the shell loop took %d ms: %v", millis, counts)
	return time.Duration(millis) * time.Millisecond
}
