package cli

import (
	"bufio"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"dagger/parity/internal/step"
)

func listCommand() *cobra.Command {
	var checks bool
	c := &cobra.Command{
		Use:   "list",
		Short: "Print the catalogue: every case, and what it promises",
		Args:  usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			out := bufio.NewWriter(os.Stdout)
			for _, c := range step.Catalogue() {
				fmt.Fprintf(out, "%s\n    %s\n", c.ID(), c.Promise)
				if !checks {
					continue
				}
				for _, k := range c.Checks {
					fmt.Fprintf(out, "    %-10s %-24s %s\n", k.Phase, k.Name, k.Sentence)
				}
			}
			return out.Flush() // which gives the first error of writing
		},
	}
	c.Flags().BoolVar(&checks, "checks", false, "print each case's checks too")
	return c
}
