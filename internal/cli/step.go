package cli

import (
	"os"

	"github.com/spf13/cobra"

	"dagger/parity/internal/step"
)

// stepCommand runs cases in the lab that it stands in. The scenarios' commands start it.
func stepCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:    "step",
		Short:  "Run cases in this lab and print their events as JSON lines",
		Hidden: true,
		Args:   usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			setup, err := step.ReadSetup(file)
			if err != nil {
				return err
			}
			ctx, _, stop := interruptible(c.Context())
			defer stop()
			return step.Run(ctx, setup, os.Stdout)
		},
	}
	c.Flags().StringVar(&file, "setup", "", "the file that says what to run, with what")
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
