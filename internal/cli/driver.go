package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"dagger/parity/internal/customdriver"
	"dagger/parity/internal/reference/driver"
)

// driverCommand groups what a workspace CLI runs as its custom driver.
func driverCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "driver",
		Short: "Run the workspaces of DevPod or Devsy as MicroSandbox machines, as their custom driver",
		Long: `Run the workspaces of DevPod or Devsy as MicroSandbox machines, as their custom driver.
Such a CLI runs the commands below by itself, once it has the provider:

    parity driver provider >provider.yaml
    devpod provider add ./provider.yaml --name microsandbox

The workspace is in DEVCONTAINER_ID, and the options of the machines are in the environment. msb is
the one of PARITY_MSB, else of PATH.

Exit codes: 0 it was done; 2 bad usage; 3 it could not be done, for the reason that is printed.
That of exec is the command's own.`,
		Args: usage(knownCommand),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(providerCommand(),
		driverVerb("find", "Print a workspace's machine as JSON, or nothing if there is none", printFound),
		driverVerb("run", "Make a workspace's machine anew, as DEVCONTAINER_RUN_OPTIONS says", runMachine),
		driverVerb("start", "Start a workspace's machine", customdriver.Driver.Start),
		driverVerb("stop", "Stop a workspace's machine", customdriver.Driver.Stop),
		driverVerb("delete", "Remove a workspace's machine", customdriver.Driver.Delete),
		driverVerb("exec", "Run DEVCONTAINER_COMMAND in a workspace's machine, as DEVCONTAINER_USER", execInMachine),
		driverVerb("logs", "Print what the machine's own command has said since the machine was started",
			func(d customdriver.Driver, ctx context.Context, id string) error { return d.Logs(ctx, id, os.Stdout) }),
		&cobra.Command{
			Use:   "arch",
			Short: "Print the architecture of the machines",
			Args:  usage(cobra.NoArgs),
			RunE: func(*cobra.Command, []string) error {
				_, err := fmt.Println(customdriver.Architecture())
				return err
			},
		})
	return c
}

// driverVerb is a command about the workspace that the environment names.
func driverVerb(name, short string, do func(customdriver.Driver, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			id := os.Getenv(customdriver.EnvID)
			if id == "" {
				return usageErrorf("%s is not set: a workspace CLI sets it; by hand, give it the workspace's uid", customdriver.EnvID)
			}
			d, err := customdriver.New(os.Environ(), os.Stderr)
			if err != nil {
				return err
			}
			ctx, stop := ended(c.Context())
			defer stop()
			return do(d, ctx, id)
		},
	}
}

func printFound(d customdriver.Driver, ctx context.Context, id string) error {
	found, err := d.Find(ctx, id)
	if err != nil || found == nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func runMachine(d customdriver.Driver, ctx context.Context, id string) error {
	o, err := customdriver.ParseRunOptions(os.Getenv(customdriver.EnvRunOptions))
	if err != nil {
		return usageErrorf("%w", err)
	}
	return d.Run(ctx, id, o)
}

func execInMachine(d customdriver.Driver, ctx context.Context, id string) error {
	command := os.Getenv(customdriver.EnvCommand)
	if command == "" {
		return usageErrorf("%s is not set: expected a shell command for the machine of workspace %s", customdriver.EnvCommand, id)
	}
	code, err := d.Exec(ctx, id, os.Getenv(customdriver.EnvUser), command, driver.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		return err
	}
	return exitWith(code)
}

func providerCommand() *cobra.Command {
	var p customdriver.Provider
	c := &cobra.Command{
		Use:   "provider",
		Short: "Print a provider.yaml by which DevPod or Devsy use this program as their driver",
		Long: `Print a provider.yaml by which DevPod or Devsy use this program as their driver. It is the
SOURCE of their provider add.

Without a flag, the CLI runs this very program. With --binary-url and --sha256, its agent downloads
a copy, and runs that only if it is the right one. With --exec, the agent runs on another machine,
and so do MicroSandbox and the workspaces.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := refuseEmpty(c, "program", "binary-url", "sha256", "exec"); err != nil {
				return err
			}
			if p.Program == "" && p.URL == "" && p.SHA256 == "" {
				var err error
				if p.Program, err = os.Executable(); err != nil {
					return err
				}
			}
			text, err := p.YAML()
			if err != nil {
				return usageErrorf("%w", err)
			}
			_, err = os.Stdout.Write(text)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&p.Program, "program", "", "this program's path where the agent runs (default this program)")
	f.StringVar(&p.URL, "binary-url", "", "where the agent downloads this program from, in place of --program")
	f.StringVar(&p.SHA256, "sha256", "", "with --binary-url: the program's SHA-256")
	f.StringVar(&p.Exec, "exec", "", "a shell command that runs ${COMMAND} on another machine, where the agent is to be (default on this one)")
	return c
}
