package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/run"
)

func cleanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left, and nothing else",
		Long: `Remove what killed runs left, and nothing else: the folders of their labs and their own in Parity's cache folder, and half-written
files in their report folders. Whatever belongs to a run that is alive stays. Every run does the same at its start.

Exit codes: 0 nothing is left; 3 something could not be removed.`,
		Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			cache, err := lab.CacheDir()
			if err != nil {
				return err
			}
			removed, err := run.Clean(cache)
			for _, what := range removed {
				fmt.Fprintln(os.Stdout, "removed", what)
			}
			if err != nil {
				return err
			}
			if len(removed) == 0 {
				fmt.Fprintln(os.Stdout, "nothing to remove: no killed run left anything in", cache)
			}
			return nil
		},
	}
}
