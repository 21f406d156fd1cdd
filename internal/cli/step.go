package cli

import (
	"os"

	"github.com/spf13/cobra"

	"dagger/parity/internal/step"
)

// stepCommand runs cases in the lab that it stands in. The scenarios' commands start it.
func stepCommand() *cobra.Command {
	var o step.Options
	c := &cobra.Command{
		Use:    "step",
		Short:  "Run cases in this lab and print their events as JSON lines",
		Hidden: true,
		Args:   usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, _, stop := interruptible(c.Context())
			defer stop()
			return step.Run(ctx, o, os.Stdout)
		},
	}
	f := c.Flags()
	f.StringVar(&o.RunID, "run-id", "", "the run's id")
	f.StringArrayVar(&o.Cases, "case", nil, "id of a case; repeat it for more")
	f.StringVar(&o.MSB, "msb", "", "the msb executable")
	f.BoolVar(&o.StandIn, "standin", false, "use the stand-in for msb")
	f.StringVar(&o.External.Manifest, "external-manifest", "", "the provider.yaml of the external provider")
	f.StringVar(&o.External.Runtime, "external-runtime", "", "the runtime")
	f.StringVar((*string)(&o.Docker.Programs), "docker", "", "the folder of the Docker Engine's programs")
	f.StringVar(&o.Docker.Host, "docker-host", "", "an existing Docker Engine")
	f.StringVar((*string)(&o.Remote.Root), "remote-root", "", "the folder with the root of a remote machine of a case's own")
	f.StringVar(&o.Remote.Target, "remote-target", "", "the file that says how another remote machine is reached")
	f.Float64Var(&o.Patience, "patience", 0, "what deadlines are multiplied with")
	f.StringArrayVar(&o.Subject, "subject", nil, "the workspace CLI; repeat it for its first arguments")
	f.StringVar(&o.Probe, "probe", "", "the probe program")
	return c
}

// trialCommand boots one microVM in the lab that it stands in. Deciding on KVM starts it.
func trialCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:    "trial",
		Short:  "Boot one microVM in this lab",
		Hidden: true,
		Args:   usage(cobra.NoArgs),
		RunE:   func(c *cobra.Command, _ []string) error { return step.Trial(c.Context(), path) },
	}
	c.Flags().StringVar(&path, "msb", "", "the msb executable")
	return c
}
