//go:build microvm

package imageparity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/moby/moby/client"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// BenchmarkUp takes the time from `workspace up` to the end of the first command in the guest, with the image of each case and the built-in
// provider, against the same by hand: `docker build`, `docker save | msb load` or `msb pull`, then `msb create` and `msb exec`. Each way
// has an empty MicroSandbox, and they take turns. It prints a table of the parts of both. It runs in a lab with PARITY_BIN set:
// docs/performance.md.
func BenchmarkUp(b *testing.B) {
	w := newBenchWorld(b)
	w.warmUp()
	lines := []string{
		"| seconds | build | transfer | load | boot | first command | looks | rest | whole |",
		"| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
	}
	for _, name := range []string{catalogue.ImageRegistry, catalogue.ImageDocker, catalogue.ImageFeature} {
		b.Run(name, func(b *testing.B) { lines = append(lines, w.of(b).compare(name)...) })
	}
	fmt.Println(strings.Join(lines, "\n"))
}

const (
	benchRunID    = "benchmark"
	wayDeadline   = 15 * time.Minute
	byHandBox     = "by-hand"
	byHandTag     = "by-hand/" + benchRunID + ":latest"
	benchProvider = "parity"

	envCalls = "BENCHMARK_CALLS" // the file in which the wrappers write
)

// benchWorld is what both ways find: a registry, a Docker Engine, and the commands msb and docker, which write down when they ran.
type benchWorld struct {
	*testing.B
	dir      string // short, as sockets are below
	wrappers string
	registry *registry.Registry
	engine   *docker.Engine
}

func newBenchWorld(b *testing.B) *benchWorld {
	if os.Getenv(lab.EnvScratch) == "" || labtest.Programs() == "" {
		b.Fatal("expected to be in a lab, with the folder of Parity's programs in PARITY_BIN: docs/performance.md has the command")
	}
	w := &benchWorld{B: b}
	cache, err := lab.CacheDir()
	w.must(err)
	w.dir, err = os.MkdirTemp("", "")
	w.must(err)
	var c cases.Cleanup
	b.Cleanup(func() { w.must(errors.Join(c.Run()...)) })
	c.Add("the folder", func(context.Context) error { return os.RemoveAll(w.dir) })
	_, err = cases.NewLink("bench", &c)
	w.must(err)
	w.registry, err = registry.Start(registry.Options{Dir: filepath.Join(w.dir, "r")})
	w.must(err)
	c.Add("the registry", func(context.Context) error { return w.registry.Close() })
	programs := docker.ProgramsIn(cache)
	w.engine, err = docker.Start(b.Context(), docker.Options{Dir: filepath.Join(w.dir, "d"), RunID: benchRunID, Programs: programs})
	w.must(err)
	c.Add("the Docker Engine", w.engine.Close)

	w.wrappers = filepath.Join(w.dir, "bin")
	w.must(os.Mkdir(w.wrappers, 0o755))
	for name, real := range map[string]string{"msb": msb.PinnedRelease().Path(cache), "docker": programs.CLI()} {
		// Times are the machine's uptime: reading it takes no further process.
		text := fmt.Sprintf(`#!/bin/sh
read -r began idle </proc/uptime
%s "$@"
code=$?
read -r ended idle </proc/uptime
echo "%s $1 $began $ended" >>"$%s"
exit $code
`, shellescape.Quote(real), name, envCalls)
		w.must(os.WriteFile(filepath.Join(w.wrappers, name), []byte(text), 0o755))
	}
	return w
}

// of is the world of a sub-benchmark.
func (w *benchWorld) of(b *testing.B) *benchWorld {
	own := *w
	own.B = b
	return &own
}

func (w *benchWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// warmUp goes one way once, so that whoever is measured first does not pay for reading msb and its kernel from the disk.
func (w *benchWorld) warmUp() {
	w.byHand(w.publish(catalogue.ImageDocker))
}

// publish makes the image of a case, with content of its own, and puts it where the case has it.
func (w *benchWorld) publish(name string) *scenario {
	w.Helper()
	s := &scenario{
		Workspace: &workspace.Workspace{
			Recorder: cases.NewRecorder(w.Context(), catalogue.Case{}, benchRunID, func(report.Event) {}), Ctx: w.Context(), ID: targetID,
		},
		name: name, registry: w.registry, engine: w.engine, ref: w.registry.Host() + "/parity/" + name + ":" + benchRunID,
	}
	if f := s.publish(); f.Verdict != report.Pass {
		w.Fatalf("publish the image: %s; %s", f.Seen, f.Next)
	}
	return s
}

// compare goes both ways in each round of the benchmark, with one image of the round, and reports how they compare. It gives the lines of
// the table.
func (w *benchWorld) compare(name string) []string {
	var ours, byHand []parts
	var ratios []string
	for w.Loop() {
		s := w.publish(name)
		ways := []func(){
			func() { ours = append(ours, w.ours(s)) },
			func() { byHand = append(byHand, w.byHand(s)) },
		}
		if len(ratios)%2 == 1 { // a machine that gets slower or faster favours neither
			slices.Reverse(ways)
		}
		for _, way := range ways {
			way()
		}
		last := len(ratios)
		ratios = append(ratios, fmt.Sprintf("%.2f", ours[last].whole/byHand[last].whole))
	}
	mine, hand := mean(ours), mean(byHand)
	ratio := mine.whole / hand.whole
	w.ReportMetric(0, "ns/op") // of no interest: the publishing is in it
	w.ReportMetric(ratio, "ratio")
	mine.report(w.B, "ours")
	hand.report(w.B, "by-hand")
	return []string{
		mine.line(name),
		hand.line(name + ", by hand"),
		fmt.Sprintf("| %s, ratio | | | | | | | | %.2f (by round: %s) |", name, ratio, strings.Join(ratios, ", ")),
	}
}

// way is one way from an image to a guest, with an empty MicroSandbox and a home of its own.
type way struct {
	*benchWorld
	ctx    context.Context
	folder string // of the workspace
	calls  string // what the wrappers write down
	subject.CLI
}

// going makes what a way needs, calls do, and removes it again. Docker has what it had before then, or the next way might find in its
// cache what this one built.
func (w *benchWorld) going(s *scenario, do func(*way) parts) parts {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), wayDeadline)
	defer cancel()
	dir, err := os.MkdirTemp(w.dir, "")
	w.must(err)
	y := &way{benchWorld: w, ctx: ctx, folder: filepath.Join(dir, "w"), calls: filepath.Join(dir, "calls")}
	w.must(errors.Join(os.Mkdir(y.folder, 0o755), os.Mkdir(filepath.Join(dir, "m"), 0o755), s.writeFolder(y.folder)))
	home, err := subject.NewHome(subject.Home{Dir: filepath.Join(dir, "h"), MSBHome: filepath.Join(dir, "m"),
		Path:  w.wrappers + ":" + os.Getenv("PATH"),
		Extra: []string{"DOCKER_HOST=" + w.engine.Host(), "DOCKER_BUILDKIT=0", envCalls + "=" + y.calls}})
	w.must(err)
	y.CLI = subject.CLI{Argv: []string{filepath.Join(labtest.Programs(), "parity"), "devsy"}, Home: home}
	before := w.inDocker()
	p := do(y)
	if after := w.inDocker(); !slices.Equal(before, after) {
		w.Fatalf("Docker has the images\n%q, and had\n%q", after, before)
	}
	w.must(os.RemoveAll(dir))
	return p
}

// inDocker lists all images of the engine, those of a build's steps included.
func (w *benchWorld) inDocker() (ids []string) {
	w.Helper()
	list, err := w.engine.Client().ImageList(w.Context(), client.ImageListOptions{All: true})
	w.must(err)
	for _, image := range list.Items {
		ids = append(ids, image.ID)
	}
	slices.Sort(ids)
	return ids
}

// run runs a command in the way's environment, and gives what it prints. It is looked for in this process's own PATH.
func (y *way) run(stderr io.Writer, argv ...string) string {
	y.Helper()
	res, err := proc.Run(y.ctx, proc.Cmd{Argv: argv, Env: y.Environ(), Dir: y.Home.Dir, Stderr: stderr})
	y.must(err)
	return string(res.Stdout)
}

// script runs the lines of a script, and gives what they print.
func (y *way) script(lines ...string) string {
	y.Helper()
	return y.run(nil, "bash", "-euo", "pipefail", "-c", strings.Join(lines, "\n"))
}

// show fails unless a command has printed what shows that the guest is of the image.
func (y *way) show(got, want string) {
	y.Helper()
	if got != want {
		y.Fatalf("the guest is of another image: it has %q, expected %q", got, want)
	}
}

// proof is a file of the guest that only the whole way brings there, and its content.
func (s *scenario) proof() (file, content string) {
	if s.name == catalogue.ImageFeature {
		return featurePath, s.featureMarker()
	}
	return images.NoncePath, s.current.nonce
}

// ours is the way of the reference CLI.
func (w *benchWorld) ours(s *scenario) parts {
	w.Helper()
	return w.going(s, func(y *way) parts {
		y.must(y.ProviderAdd(y.ctx, "microsandbox", benchProvider, nil))
		workspace := func(args ...string) []string { return append(append(slices.Clone(y.Argv), "workspace"), args...) }
		var said stamps
		began := time.Now()
		y.run(&said, workspace("up", "--ide", "none", "--id", targetID, "--provider", benchProvider, y.folder)...)
		y.run(nil, workspace("ssh", targetID, "--command", "true")...)
		whole := time.Since(began)
		p := y.split(whole)

		making := said.first("making a machine for workspace ")
		if making.IsZero() {
			w.Fatalf("`workspace up` did not say when it has the image to make the machine of; it said:\n%s", said.text.String())
		}
		if building := said.first("building "); !building.IsZero() {
			p.build = making.Sub(building).Seconds()
		}
		p.transfer = p.loadBegan - uptimeOf(making) - p.looksBeforeLoad
		p.rest -= p.build + p.transfer

		file, content := s.proof()
		res, err := y.SSH(y.ctx, targetID, "cat "+file, nil)
		y.must(err)
		y.show(string(res.Stdout), content)
		y.must(y.Delete(y.ctx, targetID, true))
		return p
	})
}

// byHand is the way of somebody who types it, or has it in a script.
func (w *benchWorld) byHand(s *scenario) parts {
	w.Helper()
	return w.going(s, func(y *way) parts {
		var lines []string
		line := func(argv ...string) { lines = append(lines, shellescape.QuoteCommand(argv)) }
		image := s.ref
		switch s.name {
		case catalogue.ImageRegistry:
			line("msb", "pull", "--insecure", image)
		case catalogue.ImageFeature:
			image = byHandTag
			file := filepath.Join(y.Home.Dir, "Dockerfile")
			y.must(os.WriteFile(file, []byte(s.dockerfileByHand()), 0o644))
			line("docker", "build", "--quiet", "--tag", image, "--file", file, y.folder)
			fallthrough
		case catalogue.ImageDocker:
			lines = append(lines, shellescape.QuoteCommand([]string{"docker", "save", image})+" | msb load")
		}
		line("msb", "create", "--pull", "never", "--cpus", "1", "--memory", "512M", "--name", byHandBox, image) // what the CLI's machine has
		line("msb", "exec", byHandBox, "--", "true")
		began := time.Now()
		y.script(lines...)
		p := y.split(time.Since(began))

		file, content := s.proof()
		y.show(y.script("msb exec "+byHandBox+" -- cat "+file), content)
		y.script("msb remove --force " + byHandBox)
		if s.name == catalogue.ImageFeature {
			y.script("docker image rm " + image)
		}
		return p
	})
}

// dockerfileByHand is the case's Dockerfile with the case's Feature written out.
func (s *scenario) dockerfileByHand() string {
	const home, place = "/home/" + user, "/tmp/feature"
	return s.dockerfile() + strings.Join([]string{
		"USER root",
		"ENV " + featureName + "=feature-${" + dockerfileName + "}",
		"COPY .devcontainer/features/parity/ " + place + "/",
		"RUN WORD=" + s.current.nonce + " _REMOTE_USER=" + user + " _REMOTE_USER_HOME=" + home + " _CONTAINER_USER=" + user +
			" _CONTAINER_USER_HOME=" + home + " sh " + place + "/install.sh && rm -r " + place,
		"USER " + user,
	}, "\n") + "\n"
}

// parts are the seconds of a way, which add up to the whole.
type parts struct {
	build    float64
	transfer float64 // out of Docker or the registry; by hand it runs beside the load, and is in that
	load     float64 // into MicroSandbox's store
	boot     float64 // msb create
	command  float64 // msb exec
	looks    float64 // msb inspect, msb image inspect
	rest     float64
	whole    float64

	loadBegan, looksBeforeLoad float64
}

// split finds the parts that are commands of msb and docker; the rest is what is left of the whole.
func (y *way) split(took time.Duration) parts {
	y.Helper()
	text, err := os.ReadFile(y.calls)
	y.must(err)
	p := parts{whole: took.Seconds(), loadBegan: math.Inf(1)}
	loadEnded := 0.0
	for line := range strings.Lines(string(text)) {
		var program, verb string
		var began, ended float64
		if _, err := fmt.Sscan(line, &program, &verb, &began, &ended); err != nil {
			y.Fatalf("a call was written down as %q: %v", line, err)
		}
		switch program + " " + verb {
		case "docker build":
			p.build += ended - began
		case "docker save", "msb load", "msb pull":
			p.loadBegan, loadEnded = min(p.loadBegan, began), max(loadEnded, ended)
		case "msb create":
			p.boot += ended - began
		case "msb exec":
			p.command += ended - began
		case "msb inspect", "msb image":
			p.looks += ended - began
			if loadEnded == 0 {
				p.looksBeforeLoad += ended - began
			}
		default:
			y.Fatalf("the split does not know of the call %q", line)
		}
	}
	p.load = loadEnded - p.loadBegan
	if loadEnded == 0 || p.boot == 0 || p.command == 0 {
		y.Fatalf("expected an image to be loaded, and msb create and exec; seen:\n%s", text)
	}
	p.rest = p.whole - p.build - p.load - p.boot - p.command - p.looks
	return p
}

// fields are the parts in the order of the table's columns.
func (p *parts) fields() []*float64 {
	return []*float64{&p.build, &p.transfer, &p.load, &p.boot, &p.command, &p.looks, &p.rest, &p.whole}
}

func mean(rounds []parts) (m parts) {
	for i, field := range m.fields() {
		for _, p := range rounds {
			*field += *p.fields()[i] / float64(len(rounds))
		}
	}
	return m
}

func (p parts) report(b *testing.B, whose string) {
	for i, name := range []string{"build", "transfer", "load", "boot", "command", "looks", "rest", "whole"} {
		if seconds := *p.fields()[i]; seconds > 0 {
			b.ReportMetric(seconds, whose+"-"+name+"-s")
		}
	}
}

func (p parts) line(name string) string {
	line := "| " + name + " |"
	for _, field := range p.fields() {
		if *field == 0 { // there is no such part
			line += " |"
			continue
		}
		line += fmt.Sprintf(" %.1f |", *field)
	}
	return line
}

// stamps are lines of a command's output, and when each came.
type stamps struct {
	text  bytes.Buffer
	lines []stamp
}

type stamp struct {
	line string
	at   time.Time
}

// Write implements io.Writer. The CLI writes its own lines whole.
func (s *stamps) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		s.lines = append(s.lines, stamp{line, time.Now()})
	}
	return s.text.Write(p)
}

// first is when the first line came that begins so; zero if none did.
func (s *stamps) first(prefix string) time.Time {
	for _, l := range s.lines {
		if strings.HasPrefix(l.line, prefix) {
			return l.at
		}
	}
	return time.Time{}
}

// uptimeOf is a time on the clock of the wrappers.
func uptimeOf(t time.Time) float64 {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		panic(err)
	}
	now, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		panic(err)
	}
	return now - time.Since(t).Seconds()
}
