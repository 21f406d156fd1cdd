package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/conformance"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
)

func conformanceCommand() *cobra.Command {
	var o conformance.Options
	var list, inJSON bool
	var timeout time.Duration
	var reportFolder string
	c := &cobra.Command{
		Use:   "conformance --runtime FILE --image REFERENCE",
		Short: "Hold an external runtime to Runtime Protocol v1, one named check for each rule",
		Long: `Hold an external runtime to Runtime Protocol v1, one named check for each rule; docs/runtime-protocol.md has the rules. The runtime is
started as a workspace CLI starts it, with this command's environment. It makes one workspace, which is removed again.

A runtime that needs KVM is checked in a lab: parity lab -- parity conformance ...

Exit codes: 0 all passed; 1 the runtime broke a rule; 2 bad usage; 3 the run was ended, or what it made could not be removed and no rule
was broken.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if list {
				out := bufio.NewWriter(os.Stdout)
				for _, check := range conformance.Names() {
					fmt.Fprintf(out, "%s\n    %s\n", check[0], check[1])
				}
				return out.Flush()
			}
			if o.Runtime.Path == "" || o.Image == "" {
				return usageErrorf("--runtime and --image: both are needed; see %s --help", c.CommandPath())
			}
			if err := refuseEmpty(c, "report"); err != nil {
				return err
			}
			if c.Flags().Changed("check-timeout") && o.Deadline <= 0 || timeout <= 0 {
				return usageErrorf("--check-timeout and --timeout must be above 0")
			}
			path, err := filepath.Abs(o.Runtime.Path)
			if err != nil {
				return err
			}
			if info, err := os.Stat(path); err != nil {
				return usageErrorf("--runtime: %w", err)
			} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
				return usageErrorf("--runtime %s: expected an executable file, seen %s", path, info.Mode())
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
			if reportFolder != "" {
				if err := report.Prepare(reportFolder); err != nil {
					return usageErrorf("%w", err)
				}
			}
			started := time.Now()
			results, cleanup := conformance.Run(ctx, o, func(r conformance.Result) { showCheck(r, inJSON) })
			if reportFolder != "" {
				if err := writeConformance(reportFolder, o.Runtime.Path, started, results, cleanup); err != nil {
					return err
				}
			}
			return conform(results, cleanup)
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Runtime.Path, "runtime", "", "the runtime's executable")
	flags.StringArrayVar(&o.Runtime.Args, "arg", []string{"serve"}, "an argument of the runtime, in place of serve; may be given again")
	flags.StringVar(&o.Image, "image", "", "an image that the runtime can run; it has /bin/sh, cat, kill, printf and sleep")
	flags.StringVar(&reportFolder, "report", "", "folder for report.json, junit.xml and summary.md (default none)")
	flags.BoolVar(&inJSON, "json", false, "print one JSON object a check")
	flags.BoolVar(&list, "list", false, "print the checks, and check nothing")
	flags.DurationVar(&o.Deadline, "check-timeout", 0, "deadline of each check (default 3m)")
	flags.DurationVar(&timeout, "timeout", 30*time.Minute, "deadline for all of it")
	return c
}

// writeConformance writes what became of the checks as a report with one case.
func writeConformance(dir, runtime string, started time.Time, results []conformance.Result, cleanup error) error {
	sum, err := run.HashFile(runtime)
	if err != nil {
		return err
	}
	plan := catalogue.Case{Scenario: "conformance", Provider: catalogue.External, Name: "runtime"}
	needs := conformance.Needs()
	for _, name := range conformance.Names() {
		plan.Checks = append(plan.Checks, catalogue.Check{Name: name[0], Sentence: name[1], Stands: catalogue.On(needs[name[0]]...)})
	}
	r := report.Report{Started: started, Elapsed: time.Since(started), Selected: []string{plan.ID()}, Head: report.Head{
		RunID: run.NewRunID(), Parity: version(), KVM: os.Getenv(lab.EnvLab), KVMReason: "where this command was run",
		Subject: report.Subject{Kind: "file", Name: filepath.Base(runtime), SHA256: sum},
	}}
	one := report.Case{ID: plan.ID(), RunID: r.Head.RunID, Started: started, Elapsed: r.Elapsed}
	for _, k := range results {
		check := report.Check{Name: k.Name, Verdict: k.Verdict, Expected: k.Expected, Seen: k.Seen, Elapsed: k.Elapsed}
		if check.Broke() {
			check.Next = "docs/runtime-protocol.md has the rules"
		}
		one.Checks = append(one.Checks, check)
	}
	if cleanup != nil {
		one.Problems = []string{"clean-up: " + cleanup.Error()}
	}
	one.Verdict = one.Judge()
	r.Cases = []report.Case{one}
	r.Problems = catalogue.Verify([]catalogue.Case{plan}, r)
	return report.Write(dir, report.Conclude(r))
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
