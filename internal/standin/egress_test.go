package standin_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// runCases runs cases with the stand-in in place of msb, and the reference CLI, and gives what came of them.
func runCases(t *testing.T, f fault.Fault, ids ...string) []report.Case {
	t.Helper()
	scratch, err := os.MkdirTemp(os.Getenv(lab.EnvScratch), "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(lab.EnvScratch, scratch)
	var events bytes.Buffer
	err = step.Run(t.Context(), step.Options{
		RunID: "standin", MSB: program(t, f), Probe: filepath.Join(programs, "parity-probe"),
		Subject: []string{filepath.Join(programs, "parity"), "devsy"}, Cases: ids,
	}, &events)
	if err != nil {
		t.Fatal(err)
	}
	var done []report.Case
	for dec := json.NewDecoder(&events); dec.More(); {
		var e report.Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Kind == report.CaseDone {
			done = append(done, *e.Result)
		}
	}
	return done
}

// broken lists the checks that did not pass and were reached, with their verdicts.
func broken(c report.Case) string {
	var list []string
	for _, k := range c.Checks {
		if k.Broke() {
			list = append(list, k.FullName()+": "+string(k.Verdict))
		}
	}
	return strings.Join(append(list, c.Problems...), ", ")
}

func TestEgressPassesOnTheStandIn(t *testing.T) {
	cases := runCases(t, "", "egress/builtin/public", "egress/builtin/deny")
	if len(cases) != 2 {
		t.Fatalf("%d cases ran", len(cases))
	}
	for _, c := range cases {
		t.Logf("%s: %s in %s", c.ID, c.Verdict, c.Elapsed)
		if c.Verdict != report.Pass {
			t.Errorf("%s: %s, %s", c.ID, c.Verdict, broken(c))
			for _, k := range c.Checks {
				t.Logf("%-40s %-12s %s", k.FullName(), k.Verdict, k.Seen)
			}
		}
	}
}
