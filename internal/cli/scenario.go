package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/egress"
	"dagger/parity/internal/cases/imageparity"
	"dagger/parity/internal/cases/remoteagent"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
	"dagger/parity/internal/spans"
	"dagger/parity/internal/step"
)

// scenarioCommands gives a command for each scenario, and one for all.
func scenarioCommands() []*cobra.Command {
	var list []*cobra.Command
	seen := map[string]bool{}
	for _, c := range step.Catalogue() {
		if !seen[c.Scenario] && c.Scenario != catalogue.Parity { // which is no scenario of its own
			seen[c.Scenario] = true
			list = append(list, scenarioCommand(c.Scenario))
		}
	}
	return append(list, scenarioCommand(catalogue.All))
}

// scenarioShort says what each scenario proves.
var scenarioShort = map[string]string{
	"contract":     "Check that the subject's command line keeps its contract",
	"egress":       "Prove that public TCP works by default and that denied TCP is refused, also after a restart and a recreation",
	"image-parity": "Prove that an image of a registry, one that only Docker has, and a Dockerfile with a Feature arrive in the guest whole",
	"remote-agent": "Prove that a remote agent downloads a runtime once, verifies it, and reuses it when its source is gone",
	catalogue.All:  "Run every scenario",
}

// runFlags are the flags of a run.
type runFlags struct {
	provider, only, kvm, report string
	tools                       run.ToolOptions
	labs                        int
	memory, disk                int
	timeout                     time.Duration
	patience                    float64
	verbose                     bool
}

func scenarioCommand(scenario string) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   scenario,
		Short: scenarioShort[scenario],
		Long: scenarioShort[scenario] + `.

Exit codes: 0 all passed; 1 a promise was broken; 2 bad usage; 3 inconclusive, or the environment lacks something.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cmp.Or(refuseEmpty(c, "provider", "only", "external-provider", "external-binary", "external-runtime", "agent", "report", "kvm", "subject", "adapter", "subject-path", "builtin-source", "microsandbox", "microsandbox-sha256", "docker-host", "remote", "remote-key", "remote-known-hosts"),
				refuseBelow(c, labsLimit, memoryLimit, diskLimit), refuseNoTime(c, "timeout"), refuseNoFactor(c, "patience")); err != nil {
				return err
			}
			if !c.Flags().Changed("timeout") {
				f.timeout = time.Duration(float64(f.timeout) * f.patience * run.AdapterPatience(f.tools.Adapter))
			}
			return f.run(c.Context(), scenario)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.provider, "provider", catalogue.Both, "builtin, external or both")
	flags.StringVar(&f.only, "only", "", "a pattern of case ids, such as */external/*: run those, after the contract's")
	flags.StringVar(&f.tools.ExternalSource, "external-provider", "", "a file, a folder or a URL of the external provider's provider.yaml (default the reference one, parity-runtime)")
	flags.StringVar(&f.tools.ExternalBinary, "external-binary", "", "the key of agent.binaries in that file that is the runtime, where it has several and a driver of its own (custom)")
	flags.StringVar(&f.tools.ExternalRuntime, "external-runtime", "", "a runtime that no provider.yaml names yet: Parity makes one around it, in place of --external-provider")
	flags.StringVar(&f.report, "report", "parity-report", "folder for report.json, junit.xml, summary.md and performance.json")
	flags.StringVar(&f.kvm, "kvm", string(lab.Auto), "auto, native or emulated")
	flags.StringVar(&f.tools.Subject, "subject", "", "a workspace CLI that speaks the contract (default the reference CLI, parity devsy)")
	flags.StringVar(&f.tools.Adapter, "adapter", "", "the adapter of a --subject that does not speak the contract, a YAML file (docs/adapters.md)")
	flags.StringArrayVar(&f.tools.SubjectPath, "subject-path", nil, "a folder of programs that the subject finds in its PATH besides msb, POSIX utilities and the case's docker; repeat it for more")
	flags.StringVar(&f.tools.BuiltinSource, "builtin-source", "", "the SOURCE by which the subject adds its own driver (default microsandbox, or the adapter's)")
	flags.StringVar(&f.tools.MicroSandbox, "microsandbox", "", "folder with bin/msb (default the pinned MicroSandbox "+msb.PinnedRelease().Version+")")
	flags.StringVar(&f.tools.MicroSandboxSHA256, "microsandbox-sha256", "", "SHA-256 that its msb must have; without it the report says unpinned")
	flags.BoolVar(&f.tools.StandIn, "standin", false, "use Parity's stand-in for msb, which needs no KVM: it shows that Parity works, and proves nothing of MicroSandbox")
	if scenario == imageparity.Scenario || scenario == catalogue.All {
		flags.StringVar(&f.tools.DockerHost, "docker-host", "", "an existing Docker Engine for image-parity, as DOCKER_HOST has it, where a native lab reaches it (default an engine of each case's own)")
	}
	if scenario == remoteagent.Scenario || scenario == catalogue.All {
		flags.StringVar(&f.tools.AgentFile, "agent", "", "what remote-agent serves as the subject's agent (default the subject's own program file)")
	}
	if scenario == remoteagent.Scenario {
		flags.StringVar(&f.tools.Visit.URL, "remote", "", "a remote machine with KVM, ssh://[USER@]HOST[:PORT] (default one of the case's own, in the lab)")
		flags.StringVar(&f.tools.Visit.Key, "remote-key", "", "the private key to log in with there (default ~/.ssh/id_rsa, id_ecdsa or id_ed25519)")
		flags.StringVar(&f.tools.Visit.KnownHosts, "remote-known-hosts", "", "the file with its public key (default ~/.ssh/known_hosts)")
	}
	flags.IntVar(&f.labs, "labs", 0, "labs side by side (default one for each processor, as cases and memory allow)")
	flags.IntVar(&f.memory, "memory", 0, "memory of each emulated machine in MiB (default 4096)")
	flags.IntVar(&f.disk, "disk", 0, "scratch disk of each emulated machine in GiB; it is sparse (default 16)")
	suite := time.Hour
	if scenario == catalogue.All {
		suite = 2 * time.Hour
	}
	flags.DurationVar(&f.timeout, "timeout", suite, "deadline for the whole run, times --patience and the adapter's unless it is given; each case has one of its own, of "+cases.Deadline.String())
	verboseFlag(flags, &f.verbose)
	flags.Float64Var(&f.patience, "patience", 1, "multiplies the deadlines of the cases, for a subject that is slow (docs/contract.md says how long a command has)")
	return c
}

func (f runFlags) run(ctx context.Context, scenario string) error {
	selected, err := step.Catalogue().Select(scenario, strings.Split(f.provider, ","))
	if err != nil {
		return usageErrorf("%w", err)
	}
	if f.only != "" {
		if selected, err = catalogue.Only(selected, f.only); err != nil {
			return usageErrorf("--only: %w", err)
		}
	}
	mode, err := lab.ParseKVM(f.kvm)
	if err != nil {
		return usageErrorf("%w", err)
	}
	if f.tools.MicroSandboxSHA256 != "" && f.tools.MicroSandbox == "" {
		return usageErrorf("--microsandbox-sha256 goes with --microsandbox: the pinned MicroSandbox has a hash of its own")
	}
	f.tools.Docker = slices.ContainsFunc(selected, func(c catalogue.Case) bool { return c.Scenario == imageparity.Scenario })
	f.tools.Remote = slices.ContainsFunc(selected, func(c catalogue.Case) bool { return c.Scenario == remoteagent.Scenario })
	if f.tools.DockerHost != "" && !f.tools.Docker {
		return usageErrorf("--docker-host goes with the scenarios %s and %s: no other uses an existing Docker Engine", imageparity.Scenario, catalogue.All)
	}
	if f.tools.Visit.URL != "" {
		selected = catalogue.Visiting(selected)
	} else if f.tools.Visit != (run.Visit{}) {
		return usageErrorf("--remote-key and --remote-known-hosts go with --remote")
	}
	f.tools.External = slices.ContainsFunc(selected, func(c catalogue.Case) bool { return c.Provider == catalogue.External })
	f.tools.Egress = slices.ContainsFunc(selected, func(c catalogue.Case) bool { return c.Scenario == egress.Scenario })
	if err := f.checkExternal(); err != nil {
		return err
	}
	if f.tools.AgentFile != "" && !slices.ContainsFunc(selected, catalogue.IsRemote) {
		return usageErrorf("--agent goes with cases of %s: no other serves an agent", remoteagent.Scenario)
	}
	if f.tools.StandIn && f.tools.MicroSandbox != "" {
		return usageErrorf("--standin and --microsandbox exclude each other: one is in place of the other")
	}
	if err := fault.Check(); err != nil {
		return usageErrorf("%w", err)
	}
	if f.tools.Cache, err = lab.CacheDir(); err != nil {
		return err
	}
	started := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("the run's deadline of %s passed (--timeout)", f.timeout))
	defer cancel()
	ctx, again, stop := interruptible(ctx)
	defer stop()
	go exitSoonAfter(again)
	place, dir, leave, err := occupy(f.tools.Cache, f.report)
	if err != nil {
		return err
	}
	defer leave()
	p := progress.New(os.Stderr, progressStyle(f.verbose), started)
	defer p.Close()
	cleanBefore(f.tools.Cache, place, p)
	f.tools.Folder = place.Path()
	tools, err := run.FindTools(ctx, f.tools)
	if ctx.Err() != nil {
		return fmt.Errorf("the run was ended before a case began, so there is no report: %w", context.Cause(ctx))
	}
	if errors.Is(err, run.ErrOption) {
		return usageErrorf("%w", err)
	}
	if err != nil {
		return err
	}
	decision := standInKVM
	if !f.tools.StandIn || mode == lab.Emulated {
		if decision, err = decide(ctx, mode, f.tools.Cache, tools.Cases.MSB); err != nil {
			return err
		}
	}
	p.Note("KVM %s: %s", decision.KVM, reason(decision, f.verbose))
	traces := spans.FromEnvironment(ctx)
	defer func() {
		if err := traces.Close(); err != nil {
			p.Note("not all spans were sent: %v", err)
		}
	}()
	r, err := run.Run(ctx, run.Options{
		Version: version(), Cases: selected, KVM: decision, Tools: tools, Labs: f.labs, Report: dir, Folder: place.Path(), Fault: fault.Asked(), Watch: traces.Event, Patience: f.patience,
		Lab: lab.Options{Cache: f.tools.Cache, MemoryMiB: f.memory, DiskGiB: f.disk},
	}, p, again)
	if ctx.Err() != nil {
		if leaveErr := place.Leave(); leaveErr == nil {
			p.Note("removed the run's folder %s", place.Path())
		}
	}
	p.Close()
	if err != nil {
		return err
	}
	return show(r, dir, f.verbose)
}

// verboseFlag adds the flag --verbose.
func verboseFlag(flags *pflag.FlagSet, verbose *bool) {
	flags.BoolVarP(verbose, "verbose", "v", false, "print every check, and not only each case and what broke")
}

// progressStyle is how a run's progress looks on standard error.
func progressStyle(verbose bool) progress.Style {
	return progress.Style{Terminal: term.IsTerminal(int(os.Stderr.Fd())), Verbose: verbose}
}

// reason is why a run has the KVM that it has.
func reason(d lab.Decision, verbose bool) string {
	if verbose {
		return d.Reason
	}
	return report.ShortReason(d.Reason)
}

// checkExternal refuses options of the external provider that do not go with the others.
func (f runFlags) checkExternal() error {
	switch t := f.tools; {
	case t.ExternalSource != "" && !t.External:
		return usageErrorf("--external-provider goes with --provider external or both")
	case t.ExternalRuntime != "" && !t.External:
		return usageErrorf("--external-runtime goes with --provider external or both")
	case t.ExternalRuntime != "" && t.ExternalSource != "":
		return usageErrorf("--external-runtime and --external-provider exclude each other: a provider.yaml names its runtime itself")
	case t.ExternalBinary != "" && t.ExternalSource == "":
		return usageErrorf("--external-binary goes with --external-provider: it is a key in that file")
	}
	return nil
}

// show prints a report, which is in dir, and ends the program with its exit code.
func show(r report.Report, dir string, verbose bool) error {
	style := report.TableStyle{Width: 120, Verbose: verbose}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		style.Colour = os.Getenv("NO_COLOR") == ""
		if w, _, err := term.GetSize(fd); err == nil {
			style.Width = w
		}
	}
	if err := report.Table(os.Stdout, r, style); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "report:", dir)
	return exitWith(r.ExitCode)
}

// standInKVM is where a run with the stand-in for msb runs.
var standInKVM = lab.Decision{KVM: lab.Native, Reason: "the stand-in for msb needs no KVM"}

// occupy takes what a run has of this machine: the report's folder, whose absolute path it gives, and a folder in the cache. leave lets go
// of both.
func occupy(cache, reportFolder string) (place *run.Place, dir string, leave func(), err error) {
	if os.Geteuid() != 0 {
		return nil, "", nil, fmt.Errorf("this is user %d: run it as root (the lab makes namespaces and mounts)", os.Geteuid())
	}
	if dir, err = filepath.Abs(reportFolder); err != nil {
		return nil, "", nil, err
	}
	place, err = run.Occupy(cache, dir)
	if errors.Is(err, run.ErrReportFolder) {
		return nil, "", nil, usageErrorf("%w", err)
	}
	if err != nil {
		return nil, "", nil, err
	}
	leave = func() {
		if err := place.Leave(); err != nil {
			fmt.Fprintln(os.Stderr, "parity: the run's folder could not be removed:", err)
		}
	}
	if err := report.Prepare(dir); err != nil {
		leave()
		return nil, "", nil, usageErrorf("%w", err)
	}
	return place, dir, leave, nil
}

// cleanBefore removes what killed runs left. What it cannot remove is no reason not to run: nothing of this run's has the same name.
func cleanBefore(cache string, place *run.Place, p *progress.Progress) {
	mine, err := place.CleanReport()
	others, cleanErr := run.Clean(cache)
	for _, what := range append(mine, others...) {
		p.Note("removed %s, which a killed run had left", what)
	}
	if err = errors.Join(err, cleanErr); err != nil {
		p.Note("not all that a killed run left could be removed: %v", err)
	}
}

// exitDeadline bounds the run after the second signal. By then the labs have been ended; what is left to do takes milliseconds.
const exitDeadline = 10 * time.Second

// exitSoonAfter ends this process if it is still there some time after the second signal.
func exitSoonAfter(again <-chan struct{}) {
	<-again
	time.Sleep(exitDeadline)
	fmt.Fprintf(os.Stderr, "parity: not done %s after the second signal, and ended; the next run, or `parity clean`, removes what is left\n", exitDeadline)
	os.Exit(exitInconclusive)
}

// decide says where KVM comes from. It boots a trial microVM if it must.
func decide(ctx context.Context, mode lab.KVM, cache, path string) (lab.Decision, error) {
	self, err := os.Executable()
	if err != nil {
		return lab.Decision{}, err
	}
	client := msb.Client{Path: path, Home: filepath.Join(cache, "msb-home")} // doctor makes no home
	doctor := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // it takes milliseconds
		defer cancel()
		return client.Doctor(ctx)
	}
	return lab.Decide(ctx, mode, lab.Checks{Doctor: doctor, Trial: []string{self, "trial", "--msb", path}, Cache: cache})
}

// interruptible gives a context that the first Ctrl-C, SIGTERM, SIGHUP or SIGQUIT cancels, and a channel that a second one closes. A
// signal that is ignored, as nohup does with SIGHUP, stays so.
func interruptible(ctx context.Context) (context.Context, <-chan struct{}, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 4)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	again, quit := make(chan struct{}), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case s := <-signals:
				if n == 0 {
					fmt.Fprintf(os.Stderr, "\nparity: %s: cleaning up, for %s at most; a second one ends it at once\n", s, run.Grace)
					cancel(fmt.Errorf("interrupted by the signal %q", s))
				} else if n == 1 {
					fmt.Fprintf(os.Stderr, "\nparity: %s: ending it at once\n", s)
					close(again)
				}
			}
		}
	}()
	return ctx, again, func() {
		signal.Stop(signals)
		close(quit)
		cancel(nil)
	}
}

// version is this program's, as the go command recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with changes"
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision + modified
}
