package cli

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/run"
)

func doctorCommand() *cobra.Command {
	var o run.ToolOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Print every prerequisite on a line: what was found, and what to do",
		Long: `Print every prerequisite on a line: what was found, and what to do. Exit code 0: a run can start; 3: something is missing. KVM
that works is no prerequisite: without it a run takes the emulated machine.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			err := refuseEmpty(c, "microsandbox", "microsandbox-sha256")
			if err != nil {
				return err
			}
			if o.Cache, err = lab.CacheDir(); err != nil {
				return err
			}
			ok := true
			line := func(name, found, next string) {
				mark := "ok     "
				if found == "" {
					mark, found = "MISSING", next
				}
				fmt.Fprintf(os.Stdout, "%s  %-34s %s\n", mark, name, found)
			}
			needed := func(name, found, next string) {
				ok = ok && found != ""
				line(name, found, next)
			}
			root := ""
			if os.Geteuid() == 0 {
				root = "user 0"
			}
			needed("root", root, "run as root: the lab makes namespaces and mounts")
			tools, toolErr := run.FindTools(c.Context(), o)
			found, next := "", ""
			if toolErr == nil {
				found = fmt.Sprintf("MicroSandbox %s (%s), parity-probe, parity-agent", tools.MicroSandbox.Version, tools.MicroSandbox.Pin)
			} else {
				next = toolErr.Error()
			}
			needed("programs", found, next)
			bundle := "/etc/ssl/certs/ca-certificates.crt"
			if _, err := os.Stat(bundle); err != nil {
				bundle = ""
			}
			needed("CA bundle", bundle, "install Debian package ca-certificates: MicroSandbox panics without it")
			native := "tools are missing"
			decision := lab.Decision{KVM: lab.Emulated}
			if toolErr == nil && root != "" {
				if decision, err = decide(c.Context(), lab.Auto, o.Cache, tools.MSB); err != nil {
					return err
				}
				native = decision.Reason
			}
			needs := needed
			if decision.KVM == lab.Native {
				line("native KVM", native, "")
				needs = line // the emulated machine is not needed here
			} else {
				native, _, _ = strings.Cut(native, "\n")
				fmt.Fprintf(os.Stdout, "no       %-34s %s; a run takes the emulated machine\n", "native KVM", native)
			}
			for _, p := range lab.MachinePrerequisites(o.Cache) {
				needs("emulated: "+p.Name, p.Found, p.Next)
			}
			fmt.Fprintf(os.Stdout, "         %-34s %d processors: as many labs side by side\n", "machine", runtime.NumCPU())
			if !ok {
				return exitWith(exitInconclusive)
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.MicroSandbox, "microsandbox", "", "folder with bin/msb (default the pinned MicroSandbox)")
	c.Flags().StringVar(&o.MicroSandboxSHA256, "microsandbox-sha256", "", "SHA-256 that its msb must have")
	return c
}
