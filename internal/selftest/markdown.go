package selftest

import (
	"fmt"
	"io"
	"strings"

	"dagger/parity/internal/fault"
)

// Markdown writes the faults and what catches each, as docs/faults.md has them.
func Markdown(w io.Writer, plan []Row) error {
	var b strings.Builder
	b.WriteString(`# What catches which fault

Made by ` + "`parity selftest --markdown`" + ` from the plan that the self-test holds each run against: do not edit it by hand.

Parity's own parts can be told to misbehave, one fault at a time, by its name in ` + "`PARITY_FAULT`" + `. With each fault
` + "`parity selftest`" + ` runs the cases on the stand-in for msb, and expects exactly the checks below to break, each with that verdict; every
other check passes, or stands on one that broke. A fault that nothing catches and a check that no fault trips fail the self-test.
`)
	part := fault.Part("")
	for _, e := range fault.Catalogue() {
		if e.Part != part {
			part = e.Part
			fmt.Fprintf(&b, "\n## Faults of the %s\n\n| Fault | What goes wrong | What catches it |\n|---|---|---|\n", part)
		}
		var trips []string
		for _, row := range plan {
			if row.Fault == e.Fault {
				for _, t := range row.Trips {
					trips = append(trips, t.String())
				}
			}
		}
		if fault.Honest(e.Fault) {
			trips = []string{"nothing: it breaks no promise, and the cases pass"}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Fault, e.Sentence, strings.Join(trips, "<br>"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
