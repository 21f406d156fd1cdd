package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/conformance"
)

func conformanceCommand() *cobra.Command {
	var o conformance.Options
	var list, inJSON bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "conformance --runtime FILE --image REFERENCE",
		Short: "Hold an external runtime to Runtime Protocol v1, one named check for each rule",
		Long: `Hold an external runtime to Runtime Protocol v1, one named check for each rule; docs/runtime-protocol.md has the rules. The runtime is
started as a workspace CLI starts it, with this command's environment. It makes one workspace, which is removed again.

A runtime that needs KVM is checked in a lab: parity lab -- parity conformance ...

Exit codes: 0 all passed; 1 the runtime broke a rule; 2 bad usage; 3 the run was ended, or what it made could not be removed.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if list {
				for _, check := range conformance.Names() {
					fmt.Fprintf(os.Stdout, "%s\n    %s\n", check[0], check[1])
				}
				return nil
			}
			if o.Runtime.Path == "" || o.Image == "" {
				return usageErrorf("--runtime and --image: both are needed; see %s --help", c.CommandPath())
			}
			if o.Deadline < 0 || timeout <= 0 {
				return usageErrorf("--check-timeout must not be negative, and --timeout must be above 0")
			}
			path, err := filepath.Abs(o.Runtime.Path)
			if err != nil {
				return err
			}
			o.Runtime.Path, o.Runtime.Env = path, os.Environ()
			ctx, cancel := context.WithTimeoutCause(c.Context(), timeout, fmt.Errorf("the deadline of %s passed (--timeout)", timeout))
			defer cancel()
			ctx, again, stop := interruptible(ctx)
			defer stop()
			go func() {
				<-again
				os.Exit(exitInconclusive) // the runtime ends with this process
			}()
			return conform(conformance.Run(ctx, o, func(r conformance.Result) { showCheck(r, inJSON) }))
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Runtime.Path, "runtime", "", "the runtime's executable")
	flags.StringArrayVar(&o.Runtime.Args, "arg", []string{"serve"}, "an argument of the runtime, in place of serve; may be given again")
	flags.StringVar(&o.Image, "image", "", "an image that the runtime can run; it has /bin/sh, cat, kill, printf and sleep")
	flags.BoolVar(&inJSON, "json", false, "print one JSON object a check")
	flags.BoolVar(&list, "list", false, "print the checks, and check nothing")
	flags.DurationVar(&o.Deadline, "check-timeout", 0, "deadline of each check (default 3m)")
	flags.DurationVar(&timeout, "timeout", 30*time.Minute, "deadline for all of it")
	return c
}

// showCheck prints a result as soon as it is there.
func showCheck(r conformance.Result, inJSON bool) {
	if inJSON {
		_ = json.NewEncoder(os.Stdout).Encode(r)
		return
	}
	fmt.Fprintf(os.Stdout, "%-12s %s\n", r.Verdict, r.Name)
	if r.Verdict == conformance.Pass || r.Verdict == conformance.NotReached {
		return
	}
	indent := func(text string) string { return strings.ReplaceAll(text, "\n", "\n                      ") }
	fmt.Fprintf(os.Stdout, "             rule     %s\n             expected %s\n             seen     %s\n", r.Sentence, indent(r.Expected), indent(r.Seen))
}

// conform says what it all comes to.
func conform(results []conformance.Result, cleanup error) error {
	count := map[conformance.Verdict]int{}
	for _, r := range results {
		count[r.Verdict]++
	}
	fmt.Fprintf(os.Stderr, "%d checks: %d pass, %d fail, %d inconclusive, %d not reached\n", len(results),
		count[conformance.Pass], count[conformance.Fail], count[conformance.Inconclusive], count[conformance.NotReached])
	switch {
	case count[conformance.Fail] > 0:
		if cleanup != nil {
			fmt.Fprintln(os.Stderr, "parity: what was made could not be removed:", cleanup)
		}
		return exitWith(exitFail)
	case cleanup != nil:
		return fmt.Errorf("what was made could not be removed: %w", cleanup)
	case count[conformance.Pass] != len(results):
		return exitWith(exitInconclusive)
	}
	return nil
}
