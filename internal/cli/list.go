package cli

import (
	"bufio"
	"fmt"
	"os"
	"strings"

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
					name := fmt.Sprintf("%-24s", k.Name)
					if len(k.Name) > 24 { // it has a line of its own
						name += "\n" + strings.Repeat(" ", 4+10+1+24)
					}
					fmt.Fprintf(out, "    %-10s %s %s\n", k.Phase, name, k.Sentence)
				}
			}
			return out.Flush() // which gives the first error of writing
		},
	}
	c.Flags().BoolVar(&checks, "checks", false, "print each case's checks too")
	return c
}
