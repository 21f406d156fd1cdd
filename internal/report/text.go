package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// headLine is one fact of a report's head.
type headLine struct{ label, text string }

// headLines are the facts of the head in the order in which every format shows them.
func headLines(r Report) []headLine {
	h := r.Head
	msb := h.MicroSandbox.Version
	if h.MicroSandbox.StandIn {
		msb += " STAND-IN"
	}
	lines := []headLine{
		{"run", fmt.Sprintf("%s, %s long, parity %s", h.RunID, Elapsed(r.Elapsed), h.Parity)},
		{"KVM", fmt.Sprintf("%s: %s", h.KVM, h.KVMReason)},
		{"kernel", h.Kernel},
		{"MicroSandbox", fmt.Sprintf("%s, sha256 %s, %s", msb, h.MicroSandbox.SHA256, h.MicroSandbox.Pin)},
		{"subject", fmt.Sprintf("%s %s, sha256 %s", h.Subject.Kind, h.Subject.Name, h.Subject.SHA256)},
	}
	if a := h.Subject.Adapter; a != nil {
		lines = append(lines, headLine{"adapter", fmt.Sprintf("%s for %s, sha256 %s, %s", a.Name, a.For, a.SHA256, Count(len(a.Deviations), "deviation"))})
		for _, d := range a.Deviations {
			lines = append(lines, headLine{"deviation", d})
		}
	}
	if h.External != nil {
		lines = append(lines, headLine{"external", h.External.text()})
	}
	if h.Agent != nil {
		lines = append(lines, headLine{"agent", fmt.Sprintf("%s, sha256 %s", h.Agent.Name, h.Agent.SHA256)})
	}
	if h.Remote != "" {
		lines = append(lines, headLine{"remote", h.Remote + ", whose KVM and kernel the check fixture/remote of remote-agent names"})
	}
	if h.Patience != 0 {
		lines = append(lines, headLine{"patience", fmt.Sprintf("%g: what the deadlines of the cases were multiplied by", h.Patience)})
	}
	for _, lab := range r.Labs {
		if lab.Failed != "" {
			failed, _, _ := strings.Cut(lab.Failed, "\n")
			lines = append(lines, headLine{"lab", strings.TrimSpace(lab.Name+" failed: ") + " " + failed})
		}
		if lab.Stalls > 0 {
			lines = append(lines, headLine{"lab", strings.TrimSpace(fmt.Sprintf("%s stood still, or got no time, until a message reached it: %s", lab.Name, Count(lab.Stalls, "time")))})
		}
	}
	for i := range lines {
		lines[i].text = strings.Join(strings.Fields(Clean(lines[i].text)), " ")
	}
	return lines
}

// ShortReason returns the first clause of the reason for a run's KVM. The report has it whole.
func ShortReason(reason string) string {
	reason, _, _ = strings.Cut(reason, "\n")
	reason, _, _ = strings.Cut(reason, ": ")
	return reason
}

// text is the provider in a line.
func (e External) text() string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Kind, e.Name, e.Version)) + ", sha256 " + e.SHA256
	if e.URL != "" {
		text += ", from " + e.URL
	}
	if e.RuntimeURL != "" {
		text += ", runtime " + e.RuntimeURL
	}
	return text
}

// Details are what a check that did not pass has to say: expected, seen and next, each on a line of its own behind indent
// and a label; the further lines of a text are indented like the first. Texts are cleaned.
func Details(c Check, indent string) string {
	var b strings.Builder
	for _, line := range []headLine{{"expected", c.Expected}, {"seen", c.Seen}, {"next", c.Next}} {
		if text := strings.TrimSpace(Clean(line.text)); text != "" {
			fmt.Fprintf(&b, "%s%-10s%s\n", indent, line.label, hang(text, indent+strings.Repeat(" ", 10)))
		}
	}
	return b.String()
}

// hang puts indent before each line of text but the first.
func hang(text, indent string) string { return strings.ReplaceAll(text, "\n", "\n"+indent) }

// notReached counts and names the checks of the case that were not reached; it is empty when all were.
func notReached(c Case) string {
	n := 0
	var names strings.Builder
	phase := ""
	for _, check := range c.Checks {
		if check.Verdict != NotReached {
			continue
		}
		switch {
		case n == 0:
			names.WriteString(check.FullName())
		case check.Phase != phase:
			names.WriteString("; " + check.FullName())
		default:
			names.WriteString(", " + check.Name)
		}
		phase = check.Phase
		n++
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("not reached (%d): %s", n, names.String())
}

// TableStyle says how Table writes.
type TableStyle struct {
	Width   int  // columns, at which a list of names is broken
	Colour  bool // verdicts are coloured
	Verbose bool // the checks that passed are named, by phase, and the reason for the KVM is whole
}

// Table writes a concluded report for a terminal: a line for each case with what broke in it, the head,
// and the verdict in one sentence last, where a reader of a long log looks. Free texts keep their own
// lines.
func Table(w io.Writer, r Report, s TableStyle) error {
	t := table{w: bufio.NewWriter(w), width: s.Width, colour: s.Colour, brokenOnly: !s.Verbose}
	if !s.Verbose {
		r.Head.KVMReason = ShortReason(r.Head.KVMReason)
	}
	if r.Warning != "" {
		t.line(t.paint(Fail, r.Warning) + "\n")
	}
	verdictWidth, idWidth := 0, 0
	for _, c := range r.Cases {
		verdictWidth = max(verdictWidth, len(c.Verdict))
		idWidth = max(idWidth, len(c.ID))
	}
	for _, c := range r.Cases {
		word := fmt.Sprintf("%-*s", verdictWidth, strings.ToUpper(string(c.Verdict)))
		t.line(fmt.Sprintf("%s  %-*s  %6s  %s", t.paint(c.Verdict, word), idWidth, c.ID, Elapsed(c.Elapsed), countChecks(c)))
		t.checks(c)
	}
	t.line("")
	for _, line := range headLines(r) {
		t.line(fmt.Sprintf("%-14s%s", line.label, line.text))
	}
	for _, problem := range r.Problems {
		t.line(fmt.Sprintf("%-14s%s", "problem", hang(problem, strings.Repeat(" ", 14))))
	}
	for _, d := range r.Differences {
		t.line(fmt.Sprintf("%-14s%s %s", "difference", d.Case, d))
	}
	t.line("\n" + t.paint(r.Verdict, r.Sentence()))
	return t.w.Flush()
}

// countChecks counts the checks of a case, and those that passed only by a deviation of the adapter.
func countChecks(c Case) string {
	text, deviate := Count(len(c.Checks), "check"), 0
	for _, check := range c.Checks {
		if check.Verdict == Pass && len(check.Deviations) > 0 {
			deviate++
		}
	}
	if deviate > 0 {
		text += fmt.Sprintf(", %d by deviation", deviate)
	}
	return text
}

// Broken writes what broke in a concluded report, for a reader who sees nothing else of it: the cases that did not pass with what each
// broken check has to say, the problems of the run, and the verdict in one sentence last.
func Broken(w io.Writer, r Report) error {
	t := table{w: bufio.NewWriter(w), width: 120, brokenOnly: true}
	if r.Warning != "" {
		t.line(r.Warning + "\n")
	}
	for _, c := range r.Cases {
		if c.Verdict != Pass || c.Judge() != Pass {
			t.line(fmt.Sprintf("%s  %s  %s", strings.ToUpper(string(c.Verdict)), c.ID, Elapsed(c.Elapsed)))
			t.checks(c)
		}
	}
	for _, problem := range r.Problems {
		t.line("problem  " + hang(problem, "         "))
	}
	t.line("\n" + r.Sentence())
	return t.w.Flush()
}

type table struct {
	w          *bufio.Writer
	width      int
	colour     bool
	brokenOnly bool // leave out the checks that passed
}

// The columns of a case's block: phases, then names.
const (
	phaseIndent = "      "
	nameIndent  = phaseIndent + "           "
)

func (t table) line(s string) { t.w.WriteString(s + "\n") }

func (t table) paint(v Verdict, s string) string {
	if !t.colour {
		return s
	}
	code := map[Verdict]string{Pass: "32", Fail: "1;31"}[v]
	if code == "" {
		code = "33"
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// checks writes the block of a case: the names that passed, a line for each run of one phase, and each broken check on lines
// of its own where it came.
func (t table) checks(c Case) {
	var passed []string
	phase := ""
	flush := func() {
		if len(passed) > 0 {
			t.list(fmt.Sprintf("%s%-*s", phaseIndent, len(nameIndent)-len(phaseIndent), phase), nameIndent, passed)
		}
		passed = nil
	}
	for _, check := range c.Checks {
		if check.Phase != phase || check.Broke() {
			flush()
			phase = check.Phase
		}
		switch {
		case check.Verdict == Pass:
			if !t.brokenOnly {
				name := check.Name
				if len(check.Deviations) > 0 {
					name += " (by deviation)"
				}
				passed = append(passed, name)
			}
		case check.Broke():
			word := t.paint(check.Verdict, strings.ToUpper(string(check.Verdict)))
			t.line(fmt.Sprintf("%s%s  %s", phaseIndent, word, check.FullName()))
			t.w.WriteString(Details(check, nameIndent))
			if where := transcriptOf(c.ID, check); where != "" {
				t.line(fmt.Sprintf("%s%-10s%s", nameIndent, "commands", where))
			}
		}
	}
	flush()
	if lost := notReached(c); lost != "" {
		t.list(phaseIndent, phaseIndent+"  ", strings.SplitAfter(lost, " "))
	}
	for _, problem := range c.Problems {
		t.line(fmt.Sprintf("%sproblem    %s", phaseIndent, hang(problem, nameIndent)))
	}
}

// list writes items behind first, with a comma between two that do not end with a space, and breaks lines at the width.
func (t table) list(first, indent string, items []string) {
	line, empty := first, true
	for i, item := range items {
		if i < len(items)-1 && !strings.HasSuffix(item, " ") {
			item += ", "
		}
		if !empty && utf8.RuneCountInString(line)+len(strings.TrimRight(item, " ")) > t.width {
			t.line(strings.TrimRight(line, " "))
			line = indent
		}
		line, empty = line+item, false
	}
	t.line(strings.TrimRight(line, " "))
}
