// Package cli is the command line of parity.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"dagger/parity/internal/reference"
)

// The exit codes of parity. A command that runs another passes that one's on.
const (
	exitPass         = 0
	exitFail         = 1 // a promise was broken
	exitUsage        = 2 // bad arguments
	exitInconclusive = 3 // the test could not tell, or the environment lacks something
)

// codedError is an error with the exit code that it means.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func usageErrorf(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// exitWith ends the program with the code and no message: what there is to say was said.
func exitWith(code int) error { return &codedError{code: code} }

// usage makes what a check of arguments refuses bad usage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageErrorf("%w; see %s --help", err, c.CommandPath())
		}
		return nil
	}
}

// knownCommand refuses the name of a command that there is not.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// Main runs the command line and gives the exit code.
func Main(args []string) int {
	root := &cobra.Command{
		Use:           "parity",
		Short:         "Prove, with real MicroSandbox microVMs, that a workspace keeps its promises",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(knownCommand),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetArgs(args)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageErrorf("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(scenarioCommands()...)
	root.AddCommand(labCommand(), listCommand(), doctorCommand(), cleanCommand(), fixtureCommand(), conformanceCommand(), driverCommand(), selftestCommand(), stepCommand(), trialCommand(), remoteExecCommand(), reference.Command("devsy"))
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return exitPass
	}
	var subject *reference.Exit // it has said what there is to say
	if errors.As(err, &subject) {
		return subject.Code
	}
	code := exitInconclusive
	var coded *codedError
	if errors.As(err, &coded) {
		if code = coded.code; coded.err == nil {
			return code
		}
	}
	fmt.Fprintln(os.Stderr, "parity: error:", err)
	return code
}
