package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"dagger/parity/internal/customdriver"
	"dagger/parity/internal/reference/driver"
)

// driverCommand is a program that a workspace CLI calls for each step of its custom driver.
func driverCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "driver",
		Short: "Run the workspaces of DevPod or Devsy on MicroSandbox, as their custom driver",
		Long: `Run the workspaces of a workspace CLI on MicroSandbox. The CLI calls these commands itself: "parity driver provider"
prints the provider.yaml that has them (docs/driver.md). It finds msb in PATH or PARITY_MSB, and its store in MSB_HOME.`,
		Args: usage(knownCommand),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	add := func(name, short string, run func(context.Context, *customdriver.Driver) error) {
		c.AddCommand(&cobra.Command{Use: name, Short: short, Args: usage(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error {
			d, err := customdriver.New(os.Stderr)
			if err != nil {
				return &codedError{exitFail, err}
			}
			if err := run(c.Context(), d); err != nil {
				if _, coded := errors.AsType[*codedError](err); coded {
					return err // the command's own exit code
				}
				return &codedError{exitFail, err}
			}
			return nil
		}})
	}
	add("find", "Print the workspace's machine as JSON; nothing if there is none", func(ctx context.Context, d *customdriver.Driver) error { return d.Find(ctx, os.Stdout) })
	add("run", "Make the workspace's machine", func(ctx context.Context, d *customdriver.Driver) error { return d.Run(ctx) })
	add("start", "Start it", func(ctx context.Context, d *customdriver.Driver) error { return d.Start(ctx) })
	add("stop", "Stop it", func(ctx context.Context, d *customdriver.Driver) error { return d.Stop(ctx) })
	add("delete", "Remove it", func(ctx context.Context, d *customdriver.Driver) error { return d.Delete(ctx) })
	add("exec", "Run a command in it, with this command's streams and exit code", func(ctx context.Context, d *customdriver.Driver) error {
		code, err := d.Exec(ctx, driver.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
		if err == nil && code != 0 {
			err = exitWith(code)
		}
		return err
	})
	c.AddCommand(&cobra.Command{Use: "arch", Short: "Print the architecture of the machines", Args: usage(cobra.NoArgs),
		Run: func(*cobra.Command, []string) { fmt.Println(customdriver.Architecture()) }})
	c.AddCommand(driverProviderCommand())
	return c
}

func driverProviderCommand() *cobra.Command {
	var m customdriver.Manifest
	c := &cobra.Command{
		Use:   "provider",
		Short: "Print the provider.yaml by which DevPod or Devsy runs this program",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if m.URL == "" && m.Program == "" {
				var err error
				if m.Program, err = os.Executable(); err != nil {
					return err
				}
			}
			if sum, err := hex.DecodeString(m.SHA256); m.SHA256 != "" && (err != nil || len(sum) != 32) {
				return usageErrorf("--binary-sha256 %q: expected 64 hex digits", m.SHA256)
			}
			text, err := m.YAML()
			if err != nil {
				return usageErrorf("%w; see %s --help", err, c.CommandPath())
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&m.CLI, "cli", customdriver.CLIs[0], "the workspace CLI: "+strings.Join(customdriver.CLIs, " or "))
	f.StringVar(&m.Program, "program", "", "the absolute path of parity where the CLI runs it (default this program)")
	f.StringVar(&m.URL, "binary-url", "", "in place of a path: the URL from which the CLI downloads parity, with --binary-sha256")
	f.StringVar(&m.SHA256, "binary-sha256", "", "the SHA-256 of what is at --binary-url")
	return c
}
