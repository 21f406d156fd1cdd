package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/report"
)

// adapterCommand holds what there is to do with adapters.
func adapterCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "adapter",
		Short: "Check the adapter of a workspace CLI that does not speak the contract",
		Args:  usage(knownCommand),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check an adapter, and print the commands that it makes and its deviations",
		Long: `Check an adapter: its keys, templates and patterns. Print each command as the workspace CLI would get it, and the
deviations: the results that the adapter reads otherwise than the contract has them (docs/adapters.md).

Exit codes: 0 the adapter can be used; 2 it cannot, and the error names the line and the column.`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			_, a, err := adapter.Load(args[0])
			if err != nil {
				return usageErrorf("%w", err)
			}
			printAdapter(c.OutOrStdout(), a)
			return nil
		},
	})
	return c
}

// printAdapter prints what an adapter makes of the verbs, with example values.
func printAdapter(w io.Writer, a *adapter.Adapter) {
	fmt.Fprintf(w, "%s: %s\n\n", report.Clean(a.Name), report.Clean(a.About))
	values := map[string]string{}
	for _, name := range []string{"source", "name", "id", "provider", "dir", "devcontainer", "recreate", "force", "command"} {
		values[name] = strings.ToUpper(name)
	}
	lists := map[string][]string{"option": {"KEY=VALUE"}}
	for _, verb := range adapter.Verbs() {
		args := adapter.Args(a.Commands[verb].Run, values, lists)
		if len(args) == 0 {
			args = []string{"(the CLI has no such command)"}
		}
		fmt.Fprintf(w, "%-16s%s\n", verb, report.Clean(strings.Join(args, " ")))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		fmt.Fprintf(w, "%-16s%s=%s\n", "environment", name, a.Environment[name])
	}
	deviations := a.Deviations()
	fmt.Fprintf(w, "\n%s\n", report.Count(len(deviations), "deviation"))
	for _, d := range deviations {
		fmt.Fprintf(w, "  %s\n", d)
	}
}
