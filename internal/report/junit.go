package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"
)

// problemsCase is the testcase that stands for what is wrong with the run itself.
const problemsCase = "run/problems"

// writeJUnit writes a testsuite for each scenario with a testcase for each case. A fail is a failure; inconclusive and not
// reached are errors. No testcase is ever skipped.
func writeJUnit(w io.Writer, r Report) error {
	suites := junit.Testsuites{Name: "parity", Time: seconds(r.Elapsed)}
	if r.Warning != "" {
		suites.Name = "parity, " + r.Warning
	}
	var scenarios []string
	byScenario := map[string][]Case{}
	for _, c := range r.Cases {
		scenario, _, _ := strings.Cut(c.ID, "/")
		if !slices.Contains(scenarios, scenario) {
			scenarios = append(scenarios, scenario)
		}
		byScenario[scenario] = append(byScenario[scenario], c)
	}
	broken := false
	for _, scenario := range scenarios {
		suite := newSuite(r, scenario, len(suites.Suites))
		var total time.Duration
		for _, c := range byScenario[scenario] {
			total += c.Elapsed
			tc := junitCase(c)
			broken = broken || tc.Failure != nil || tc.Error != nil
			suite.AddTestcase(tc)
		}
		suite.Time = seconds(total)
		suites.AddSuite(suite)
	}
	// A run that did not pass must never look green to a reader of JUnit.
	if len(r.Problems) > 0 || (r.Verdict != Pass && !broken) {
		suite := newSuite(r, "run", len(suites.Suites))
		suite.Time = seconds(0)
		suite.AddTestcase(junit.Testcase{Name: problemsCase, Classname: "run", Time: seconds(0), Error: &junit.Result{
			Type: string(Inconclusive), Message: r.Sentence(), Data: strings.Join(r.Problems, "\n"),
		}})
		suites.AddSuite(suite)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	return suites.WriteXML(w)
}

// newSuite is an empty testsuite with the run's head as properties.
func newSuite(r Report, name string, id int) junit.Testsuite {
	suite := junit.Testsuite{Name: name, ID: id}
	suite.SetTimestamp(r.Started)
	if r.Warning != "" {
		suite.AddProperty("WARNING", r.Warning)
		suite.SystemOut = &junit.Output{Data: r.Warning}
	}
	for _, line := range headLines(r) {
		suite.AddProperty(line.label, line.text)
	}
	suite.AddProperty("run verdict", string(r.Verdict))
	return suite
}

func junitCase(c Case) junit.Testcase {
	scenario, rest, _ := strings.Cut(c.ID, "/")
	provider, _, _ := strings.Cut(rest, "/")
	tc := junit.Testcase{Name: c.ID, Classname: scenario + "." + provider, Time: seconds(c.Elapsed)}
	verdict := together([]Verdict{c.Verdict, c.Judge()})
	var deviations []string
	for _, check := range c.Checks {
		for _, d := range check.Deviations {
			deviations = append(deviations, fmt.Sprintf("%s %s: %s", check.Word(), check.FullName(), d))
		}
	}
	if len(deviations) > 0 {
		tc.SystemOut = &junit.Output{Data: strings.Join(deviations, "\n")}
	}
	if verdict == Pass {
		return tc
	}
	var names []string
	var data strings.Builder
	for _, check := range c.Checks {
		if check.Broke() {
			names = append(names, check.FullName())
			fmt.Fprintf(&data, "%s: %s\n%s", check.Verdict, check.FullName(), Details(check, "  "))
		}
	}
	if lost := notReached(c); lost != "" {
		fmt.Fprintln(&data, lost)
	}
	for _, problem := range c.Problems {
		fmt.Fprintf(&data, "problem: %s\n", problem)
	}
	message := fmt.Sprintf("%s: %s", verdict, strings.Join(names, ", "))
	if len(names) == 0 {
		message = fmt.Sprintf("%s: no check was seen to break", verdict)
		if len(c.Problems) > 0 {
			message = fmt.Sprintf("%s: %s", verdict, firstLine(c.Problems[0]))
		}
	}
	result := &junit.Result{Type: string(verdict), Message: message, Data: data.String()}
	if verdict == Fail {
		tc.Failure = result
	} else {
		tc.Error = result
	}
	return tc
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
