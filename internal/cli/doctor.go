package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/link"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
)

func doctorCommand() *cobra.Command {
	var o run.ToolOptions
	var kvm string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Print every prerequisite on a line: what was found, and what to do",
		Long: `Print every prerequisite on a line: what was found, and what to do. Exit code 0: a run can start; 3: something is missing. KVM
that works is no prerequisite: without it a run takes the emulated machine. --kvm native or emulated asks only for what such a run needs.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := refuseEmpty(c, "kvm", "microsandbox", "microsandbox-sha256"); err != nil {
				return err
			}
			mode, err := lab.ParseKVM(kvm)
			if err != nil {
				return usageErrorf("%w", err)
			}
			if o.Cache, err = lab.CacheDir(); err != nil {
				return err
			}
			ok, err := doctor(c.Context(), os.Stdout, mode, o)
			if err == nil && !ok {
				err = exitWith(exitInconclusive)
			}
			return err
		},
	}
	c.Flags().StringVar(&kvm, "kvm", string(lab.Auto), "auto, native or emulated: what the run will be given")
	c.Flags().StringVar(&o.MicroSandbox, "microsandbox", "", "folder with bin/msb (default the pinned MicroSandbox)")
	c.Flags().StringVar(&o.MicroSandboxSHA256, "microsandbox-sha256", "", "SHA-256 that its msb must have")
	return c
}

// doctor prints the prerequisites of a run with the given KVM and tells whether all are there.
func doctor(ctx context.Context, w io.Writer, mode lab.KVM, o run.ToolOptions) (ok bool, err error) {
	ok = true
	root := os.Geteuid() == 0
	line := func(mark, name, text string) { fmt.Fprintf(w, "%-7s  %-34s %s\n", mark, name, text) }
	needed := func(p lab.Prerequisite) {
		switch {
		case p.Found != "":
			line("ok", p.Name, p.Found)
		case p.Cached && !root: // root's cache is another one: setup may have filled it
			line("unknown", p.Name, ofAnotherUser)
		default:
			ok = false
			line("MISSING", p.Name, p.Next)
		}
	}
	if root {
		line("ok", "root", "user 0")
	} else {
		ok = false
		line("MISSING", "root", "run as root: the lab makes namespaces and mounts")
	}

	folder, err := os.MkdirTemp("", "parity-doctor-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(folder)
	o.External, o.Folder = true, folder
	tools, toolErr := run.FindTools(ctx, o)
	programs := lab.Prerequisite{Name: "programs"}
	if toolErr == nil {
		programs.Found = fmt.Sprintf("MicroSandbox %s (%s), parity-probe, parity-agent, parity-runtime", tools.MicroSandbox.Version, tools.MicroSandbox.Pin)
	} else {
		programs.Next = toolErr.Error()
		_, statErr := os.Stat(msb.PinnedRelease().Path(o.Cache))
		programs.Cached = o.MicroSandbox == "" && tools.Cases.MSB != "" && statErr != nil // the others were found
	}
	needed(programs)
	bundle := lab.Prerequisite{Name: "CA bundle", Next: "install Debian package ca-certificates: MicroSandbox panics without it"}
	if _, err := os.Stat(caBundle); err == nil {
		bundle.Found = caBundle
	}
	needed(bundle)

	native, reason := false, "it is tried only as root, with all programs"
	if mode != lab.Emulated && toolErr == nil && root {
		// Auto, also where native is asked for: it tells whether a microVM boots, and if not, why.
		decision, err := decide(ctx, lab.Auto, o.Cache, tools.Cases.MSB)
		if err != nil {
			return false, err
		}
		native, reason = decision.KVM == lab.Native, decision.Reason
	}
	first, last, _ := strings.Cut(reason, "\n")
	first = strings.TrimSuffix(first, "; its last words:") // which are on the lines that follow
	if _, why, ok := strings.Cut(last, "error: "); ok {    // msb says there what is wrong, and what to do below
		first += ": " + strings.Join(strings.Fields(strings.ReplaceAll(why, "→", "-")), " ")
	}
	switch {
	case native:
		line("ok", "native KVM", first)
	case mode == lab.Native:
		ok = false
		line("MISSING", "native KVM", first+"; --kvm auto or emulated runs without it")
	case mode == lab.Auto:
		line("no", "native KVM", first+"; a run takes the emulated machine")
	}
	if native || mode == lab.Native {
		if root {
			needed(lab.ScratchPrerequisite(o.Cache))
			needed(linkPrerequisite())
		} else {
			line("unknown", "native: scratch folder, link", "they can be tried only as root")
		}
	} else {
		for _, p := range lab.MachinePrerequisites(o.Cache) {
			p.Name = "emulated: " + p.Name
			needed(p)
		}
	}
	extracted := func(name, where string, err error, lacking string) {
		switch {
		case err == nil:
			line("ok", name, where)
		case !root:
			line("unknown", name, ofAnotherUser)
		default:
			line("no", name, lacking+" not run without it, all else does; scripts/setup extracts it into "+where)
		}
	}
	engine, machine := docker.ProgramsIn(o.Cache), remote.RootIn(o.Cache)
	extracted("Docker Engine", string(engine), engine.Check(), "image-parity and remote-agent do")
	extracted("remote machine", string(machine), machine.Check(), "remote-agent does")
	line("", "machine", report.Count(runtime.NumCPU(), "processor")+": as many labs side by side")
	return ok, nil
}

// ofAnotherUser is said of what only root's cache may have.
const ofAnotherUser = "it is not in this user's cache folder; see what root's has: run doctor as root"

const caBundle = "/etc/ssl/certs/ca-certificates.crt"

// linkPrerequisite says whether this machine's kernel can make the link that a native lab's endpoint stands on.
func linkPrerequisite() lab.Prerequisite {
	p := lab.Prerequisite{Name: "native: a link of the lab's own"}
	var err error
	if p.Found, err = link.Try(); err != nil {
		p.Found, p.Next = "", err.Error()+"; the kernel must have the module dummy or bridge: load one"
	}
	return p
}
