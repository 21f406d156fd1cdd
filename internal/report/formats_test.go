package report

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func tableOf(t *testing.T, r Report, width int, colour bool) string {
	t.Helper()
	return tableIn(t, r, TableStyle{Width: width, Colour: colour, Verbose: true})
}

func tableIn(t *testing.T, r Report, s TableStyle) string {
	t.Helper()
	var b strings.Builder
	if err := Table(&b, r, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTable(t *testing.T) {
	r := raw()
	r.Problems = []string{"lab 2 ended\nwith code 137"}
	want := `PASS          contract/builtin/cli     9.4s  2 checks
                 ssh exit code, status of a missing workspace
INCONCLUSIVE  egress/builtin/public    1m0s  2 checks
      INCONCLUSIVE  created control-probe-before
                 seen      time-out
      not reached (1): created public
      problem    clean-up: bridge p0 is still there
FAIL          egress/builtin/deny     1m23s  7 checks
                 fixture/link
      created    workspace/up, policy
      recreated  workspace/up
      FAIL  recreated deny
                 expected  connect is refused or reset
                 seen      connected, then 64 bytes | of <b>body</b>
                           second line ` + "```" + ` \x1b[31mred
                 next      look at msb inspect
      not reached (2): recreated identity/same-boot; receipts

run           r1, 2m33s long, parity v0
KVM           emulated: msb doctor: no svm flag
kernel        6.1.0 #1 SMP
MicroSandbox  0.7.2, sha256 aa11, pinned
subject       reference parity devsy, sha256 bb22
problem       lab 2 ended
              with code 137

FAIL: egress/builtin/deny broke its promise at recreated deny
`
	if got := tableOf(t, Conclude(r), 80, false); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

// Unless it is asked for more, a case that passed is a line, and a broken check is as before.
func TestAShortTableNamesOnlyWhatBroke(t *testing.T) {
	r := raw()
	for _, c := range r.Cases {
		if c.ID == "contract/builtin/cli" {
			c.Checks[0].Deviations = []string{"up: only the last line is read"}
		}
	}
	want := `PASS          contract/builtin/cli     9.4s  2 checks, 1 by deviation
INCONCLUSIVE  egress/builtin/public    1m0s  2 checks
      INCONCLUSIVE  created control-probe-before
                 seen      time-out
      not reached (1): created public
      problem    clean-up: bridge p0 is still there
FAIL          egress/builtin/deny     1m23s  7 checks
      FAIL  recreated deny
                 expected  connect is refused or reset
                 seen      connected, then 64 bytes | of <b>body</b>
                           second line ` + "```" + ` \x1b[31mred
                 next      look at msb inspect
      not reached (2): recreated identity/same-boot; receipts

run           r1, 2m33s long, parity v0
KVM           emulated: msb doctor
kernel        6.1.0 #1 SMP
MicroSandbox  0.7.2, sha256 aa11, pinned
subject       reference parity devsy, sha256 bb22

FAIL: egress/builtin/deny broke its promise at recreated deny
`
	if got := tableIn(t, Conclude(r), TableStyle{Width: 80}); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

func TestTheHeadNamesTheProviderAndTheAgent(t *testing.T) {
	r := raw()
	r.Head.External = &External{Kind: "manifest", Name: "mine", Version: "v1.2.3", URL: "https://a.test/p", RuntimeURL: "https://a.test/r", SHA256: "cc33"}
	r.Head.Agent = &Agent{Name: "devpod-linux-amd64", SHA256: "dd44"}
	for _, want := range []string{
		"\nexternal      manifest mine v1.2.3, sha256 cc33, from https://a.test/p, runtime https://a.test/r\n",
		"\nagent         devpod-linux-amd64, sha256 dd44\n",
	} {
		if got := tableOf(t, Conclude(r), 120, false); !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	r.Head.External = &External{Kind: "file", Name: "runtime", SHA256: "cc33"}
	if got := tableOf(t, Conclude(r), 120, false); !strings.Contains(got, "\nexternal      file runtime, sha256 cc33\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestTableBreaksLinesAtTheWidth(t *testing.T) {
	want := `      recreated  workspace/up, deny,
                 identity/same-boot
                 receipts
`
	if got := tableOf(t, Conclude(passed()), 40, false); !strings.Contains(got, want) {
		t.Errorf("the table for 40 columns is\n%s\nwant in it\n%s", got, want)
	}
	lost := raw()
	for i := range lost.Cases[0].Checks {
		lost.Cases[0].Checks[i].Verdict = NotReached
	}
	want = `      not reached (7): fixture/link;
        created workspace/up, policy;
        recreated workspace/up, deny,
        identity/same-boot; receipts
`
	if got := tableOf(t, Conclude(lost), 40, false); !strings.Contains(got, want) {
		t.Errorf("the table for 40 columns is\n%s\nwant in it\n%s", got, want)
	}
}

func TestTableColoursOnlyWhenAsked(t *testing.T) {
	if got := tableOf(t, sample(), 80, false); strings.Contains(got, "\x1b") {
		t.Errorf("a table without colour has an escape sequence:\n%q", got)
	}
	got := tableOf(t, sample(), 80, true)
	if !strings.Contains(got, "\x1b[1;31mFAIL        ") || strings.Contains(got, "\x1b[31mred") {
		t.Errorf("in a table with colour the verdict has one and the guest's text has none; got\n%q", got)
	}
}

// suites is what a reader of JUnit sees.
type suites struct {
	Name   string `xml:"name,attr"`
	Tests  int    `xml:"tests,attr"`
	Errors int    `xml:"errors,attr"`
	Fails  int    `xml:"failures,attr"`
	Suites []struct {
		Name       string `xml:"name,attr"`
		Properties []struct {
			Name  string `xml:"name,attr"`
			Value string `xml:"value,attr"`
		} `xml:"properties>property"`
		Cases []struct {
			Name    string  `xml:"name,attr"`
			Time    string  `xml:"time,attr"`
			Failure *result `xml:"failure"`
			Error   *result `xml:"error"`
			Skipped *result `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

type result struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func junitOf(t *testing.T, r Report) suites {
	t.Helper()
	var b bytes.Buffer
	if err := writeJUnit(&b, r); err != nil {
		t.Fatal(err)
	}
	var s suites
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	return s
}

func TestJUnit(t *testing.T) {
	r := raw()
	r.Problems = []string{"case x is missing"}
	got := junitOf(t, Conclude(r))
	if got.Tests != 4 || got.Errors != 2 || got.Fails != 1 || len(got.Suites) != 3 {
		t.Fatalf("%d suites, %d tests, %d errors, %d failures; want 3, 4, 2, 1", len(got.Suites), got.Tests, got.Errors, got.Fails)
	}
	contract, egress, run := got.Suites[0], got.Suites[1], got.Suites[2]
	if contract.Name != "contract" || len(contract.Cases) != 1 || contract.Cases[0].Failure != nil || contract.Cases[0].Error != nil {
		t.Errorf("the contract suite is %+v", contract)
	}
	if contract.Properties[1].Name != "KVM" || contract.Properties[1].Value != "emulated: msb doctor: no svm flag" {
		t.Errorf("the head's properties are %+v", contract.Properties)
	}
	public, deny := egress.Cases[0], egress.Cases[1]
	if public.Error == nil || public.Error.Message != "inconclusive: created control-probe-before" || public.Failure != nil ||
		!strings.Contains(public.Error.Text, "clean-up: bridge p0 is still there") {
		t.Errorf("the inconclusive case is %+v", public)
	}
	if deny.Name != "egress/builtin/deny" || deny.Time != "83.000" || deny.Error != nil || deny.Failure == nil ||
		deny.Failure.Message != "fail: recreated deny" {
		t.Fatalf("the failed case is %+v", deny)
	}
	for _, want := range []string{
		"expected  connect is refused or reset", "seen      connected, then 64 bytes", "next      look at msb inspect",
		"not reached (2): recreated identity/same-boot; receipts",
	} {
		if !strings.Contains(deny.Failure.Text, want) {
			t.Errorf("the failure does not say %q:\n%s", want, deny.Failure.Text)
		}
	}
	if c := run.Cases[0]; c.Name != "run/problems" || c.Error == nil || !strings.Contains(c.Error.Text, "case x is missing") {
		t.Errorf("the problems of the run are %+v", c)
	}
}

func TestJUnitIsGreenOnlyForAPass(t *testing.T) {
	if got := junitOf(t, Conclude(passed())); got.Tests != 3 || got.Errors+got.Fails != 0 {
		t.Errorf("a passing run has %d tests, %d errors and %d failures", got.Tests, got.Errors, got.Fails)
	}
	empty := passed()
	empty.Cases[0].Checks = nil
	never := passed()
	for i := range never.Cases[0].Checks {
		never.Cases[0].Checks[i].Verdict = NotReached
	}
	if c := junitOf(t, Conclude(empty)).Suites[1].Cases[1]; c.Name != empty.Cases[0].ID || c.Error == nil {
		t.Errorf("a case that claims a pass without checks is %+v, want an error", c)
	}
	problem := passed()
	problem.Problems = []string{"a lab died"}
	for what, r := range map[string]Report{
		"no case": {}, "a pass without checks": empty, "a pass of a case that was not reached": never, "a problem": problem,
	} {
		if got := junitOf(t, Conclude(r)); got.Errors == 0 {
			t.Errorf("%s: JUnit shows no error", what)
		}
	}
}

func TestSummary(t *testing.T) {
	var b bytes.Buffer
	writeSummary(&b, sample())
	got := b.String()
	for _, want := range []string{
		"# Parity: fail\n\nFAIL: egress/builtin/deny broke its promise at recreated deny\n",
		"KVM           emulated: msb doctor: no svm flag\n",
		"| egress/builtin/deny | **fail** | 4 | 1 | 2 | 1m23s |\n",
		// The guest's text holds three backticks: only a longer fence keeps it inside.
		"````text\nfail: recreated deny\n  expected  connect is refused or reset\n",
		"problem: clean-up: bridge p0 is still there\n",
		"<details><summary>All 11 checks</summary>\n",
		"| egress/builtin/deny | recreated | identity/same-boot | not reached | 1.5s |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the summary does not hold\n%s\nit is\n%s", want, got)
		}
	}
	b.Reset()
	writeSummary(&b, Conclude(passed()))
	if strings.Contains(b.String(), "What broke") {
		t.Errorf("the summary of a passing run says that something broke:\n%s", b.String())
	}
}

func TestAStandInIsShoutedAtTheTopOfEveryFormat(t *testing.T) {
	r := passed()
	r.Head.MicroSandbox.StandIn = true
	r = Conclude(r)
	dir := t.TempDir()
	if err := Write(dir, r); err != nil {
		t.Fatal(err)
	}
	tops := map[string]string{"table": tableOf(t, r, 80, false)}
	for _, name := range []string{JSONFile, JUnitFile, SummaryFile} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		tops[name] = string(data)
	}
	for name, text := range tops {
		if top := strings.Join(strings.SplitN(text, "\n", 4)[:3], "\n"); !strings.Contains(top, "STAND-IN: ") {
			t.Errorf("the first three lines of %s do not name the stand-in:\n%s", name, top)
		}
	}
	if got := tableOf(t, Conclude(passed()), 80, false); strings.Contains(got, "STAND-IN") {
		t.Errorf("a run without a stand-in names one:\n%s", got)
	}
}
