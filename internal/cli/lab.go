package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
)

func labCommand() *cobra.Command {
	var o lab.Options
	var kvm, folder, net string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "lab [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command where KVM works, with nothing of this machine touched",
		Long: `Run a command where KVM works: natively, in fresh namespaces of this machine, or in an emulated machine whose root is this
machine's own, read-only under an overlay. Standard streams, exit code and signals are the command's. It finds an empty folder
with user xattrs in $PARITY_SCRATCH, and native or emulated in $PARITY_LAB. A second Ctrl-C ends the lab at once.`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cmp.Or(refuseEmpty(c, "kvm", "net", "report"), refuseBelow(c, cpusLimit, memoryLimit, diskLimit),
				refuseNoTime(c, "timeout", "boot-timeout")); err != nil {
				return err
			}
			mode, err := lab.ParseKVM(kvm)
			if err != nil {
				return usageErrorf("%w", err)
			}
			switch net {
			case "none":
			case "user":
				o.UserNet = true
			default:
				return usageErrorf("--net %q: expected none or user", net)
			}
			if o.Cache, err = lab.CacheDir(); err != nil {
				return err
			}
			if folder != "" {
				if o.Report, err = filepath.Abs(folder); err != nil {
					return err
				}
			}
			if o.Dir, err = os.Getwd(); err != nil {
				return err
			}
			decision, err := decide(c.Context(), mode, o.Cache, msb.PinnedRelease().Path(o.Cache))
			if err != nil {
				return err
			}
			o.KVM = decision.KVM
			o.Argv, o.Env = args, os.Environ()
			o.Stdin, o.Stdout, o.Stderr = os.Stdin, os.Stdout, os.Stderr
			o.Fault = fault.Asked()
			o.Notes = func(text string) { fmt.Fprintln(os.Stderr, "parity:", text) }
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			l, err := lab.Start(ctx, o)
			if err != nil {
				return err
			}
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer signal.Stop(signals)
			go func() {
				for s := range signals {
					l.Signal(s.(syscall.Signal))
				}
			}()
			res, err := l.Wait()
			if res.Stalls > 0 {
				o.Notes(fmt.Sprintf("the emulated machine stood still, or got no time, until a message reached it: %s", report.Count(res.Stalls, "time")))
			}
			if err != nil {
				return err
			}
			return exitWith(res.ExitCode)
		},
	}
	f := c.Flags()
	f.StringVar(&kvm, "kvm", string(lab.Auto), "auto, native or emulated")
	f.IntVar(&o.CPUs, "cpus", 0, "processors of the emulated machine (default 1; more have shown faults, see docs/lab.md)")
	f.IntVar(&o.MemoryMiB, "memory", 0, "memory of the emulated machine in MiB (default 4096)")
	f.IntVar(&o.DiskGiB, "disk", 0, "size of the scratch disk of the emulated machine in GiB; it is sparse (default 16)")
	f.StringVar(&net, "net", "none", "none, or user: QEMU's user-mode network (emulated), this machine's network (native)")
	f.StringVar(&folder, "report", "", "folder that the command writes, copied out of the emulated machine")
	f.DurationVar(&timeout, "timeout", time.Hour, "deadline for the whole")
	f.DurationVar(&o.BootDeadline, "boot-timeout", 0, "deadline for the lab to start the command (default 3m)")
	f.SetInterspersed(false)
	return c
}
