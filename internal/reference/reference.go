// Package reference is the reference CLI: a workspace CLI that speaks Devsy's command line, JSON and exit codes, so that Parity can run
// without one of its own. It is a subject like any other: nothing of Parity calls into it except by running it.
package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// The exit codes with a meaning of their own.
const (
	exitFailure = 1
	exitMissing = 75 // status of a workspace that does not exist
)

// Exit is the error of a command that did not succeed. What there is to say was said: the process ends with Code and prints nothing.
type Exit struct{ Code int }

// Error names the code.
func (e *Exit) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Command gives the command tree of the CLI under a name. Every error of it is an *Exit. JSON and a command's output go to
// standard output, all else to standard error.
//
// It takes from the environment: DEVSY_HOME, where the records are (else $HOME/.devsy); MSB_HOME; msb in PATH, or PARITY_MSB;
// DEVSY_AGENT, the parity-agent for guests, else the one beside this executable; what Docker's client takes, DOCKER_HOST and DOCKER_CONFIG
// above all; SSL_CERT_FILE; DEVSY_AGENT_URL, the folder from which a remote machine may download this executable as its agent.
func Command(name string) *cobra.Command {
	root := group(name, "The reference workspace CLI: Devsy's command line over MicroSandbox",
		group("provider", "Providers of workspaces", providerAdd(), providerDelete(), providerList()),
		group("workspace", "Workspaces",
			workspaceUp(), workspaceSSH(), workspaceStop(), workspaceStatus(), workspaceList(), workspaceDelete()),
		agentCommand())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return ended(c, fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	})
	return root
}

// group is a command that only has others.
func group(name, short string, commands ...*cobra.Command) *cobra.Command {
	g := verb(name, short, cobra.ArbitraryArgs, func(_ context.Context, c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q of %s; see %s --help", args[0], c.CommandPath(), c.CommandPath())
		}
		return c.Help()
	})
	g.AddCommand(commands...)
	return g
}

// verb is a command that runs until it is done or a signal ends it.
func verb(use, short string, check cobra.PositionalArgs, run runFunc) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			parent := c.Context()
			if parent == nil {
				parent = context.Background()
			}
			ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if err := check(c, args); err != nil {
				return ended(c, fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
			}
			return ended(c, misbehave(ctx, c, args, run))
		},
	}
}

// ended says on standard error what went wrong, and makes an *Exit of it.
func ended(c *cobra.Command, err error) error {
	var exit *Exit
	if err == nil || errors.As(err, &exit) {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s: error: %v\n", c.Root().Name(), err)
	return &Exit{exitFailure}
}

// resultFormat adds --result-format to a command, and gives whether it is json, once it was checked.
func resultFormat(c *cobra.Command) func() (bool, error) {
	format := c.Flags().String("result-format", "plain", "what to print: plain or json")
	return func() (bool, error) {
		if *format != "plain" && *format != "json" {
			return false, fmt.Errorf("--result-format: expected plain or json, seen %q", *format)
		}
		return *format == "json", nil
	}
}

func printJSON(c *cobra.Command, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
	}
	return err
}

// options reads KEY=VALUE flags.
func options(pairs []string) (map[string]string, error) {
	values := map[string]string{}
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("option: expected KEY=VALUE, seen %q", pair)
		}
		values[key] = value
	}
	return values, nil
}

func merged(all ...map[string]string) map[string]string {
	values := map[string]string{}
	for _, m := range all {
		maps.Copy(values, m)
	}
	return values
}

// list is a command that prints records, as a JSON array or as a table with a header and a row for each.
func list[T any](short, header string, read func(state) ([]T, error), row func(T) []string) *cobra.Command {
	var asJSON func() (bool, error)
	c := verb("list", short, cobra.NoArgs, func(_ context.Context, c *cobra.Command, _ []string) error {
		inJSON, err := asJSON()
		if err != nil {
			return err
		}
		s, err := openState()
		if err != nil {
			return err
		}
		records, err := read(s)
		if err != nil {
			return err
		}
		if inJSON {
			return printJSON(c, records)
		}
		table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, header)
		for _, r := range records {
			fmt.Fprintln(table, strings.Join(row(r), "\t"))
		}
		return table.Flush()
	})
	asJSON = resultFormat(c)
	return c
}
