package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"dagger/parity/fixtures/remote"
)

// remoteExecCommand runs a command on a remote machine. The exec.command of a provider.yaml calls it, with the command in COMMAND.
func remoteExecCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "remote-exec FILE [-- PROGRAM [ARGUMENT...]]",
		Short:  "Run the shell command in COMMAND, or a program, on the machine that FILE describes",
		Hidden: true,
		Args:   usage(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			command := os.Getenv("COMMAND")
			if len(args) > 1 {
				command = shellescape.QuoteCommand(args[1:])
			}
			if command == "" {
				return usageErrorf("remote-exec: expected a shell command in the environment variable COMMAND, or a program after FILE")
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer stop()
			code, err := remote.Exec(ctx, args[0], command, os.Stdin, os.Stdout, os.Stderr)
			if err != nil {
				return &codedError{remote.Failed, fmt.Errorf("remote-exec: %w", err)}
			}
			if code != exitPass {
				return exitWith(code)
			}
			return nil
		},
	}
}
