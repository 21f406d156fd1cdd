package report

import "time"

// Event is one step of a run in progress. A step prints them on standard output, one JSON object a line; whoever started it
// follows them and builds the report from them.
type Event struct {
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	Case string    `json:"case,omitempty"`

	Check  *Check `json:"check,omitempty"`  // CheckStarted (verdict empty) and CheckDone
	Result *Case  `json:"result,omitempty"` // CaseDone
	Head   *Head  `json:"head,omitempty"`   // Started: what only the place where the cases run can know
	Text   string `json:"text,omitempty"`   // Note

	Command    *Command      `json:"command,omitempty"`               // CommandDone
	BareCreate time.Duration `json:"bareCreateNanoseconds,omitempty"` // Note: see Lab
}

// EventKind says what an event tells.
type EventKind string

// The kinds of events, in the order in which they come; checks, notes and commands repeat.
const (
	Started      EventKind = "started"
	CaseStarted  EventKind = "case-started"
	CheckStarted EventKind = "check-started"
	CheckDone    EventKind = "check-done"
	Note         EventKind = "note"
	CommandDone  EventKind = "command-done"
	CaseDone     EventKind = "case-done"
)

// Known says whether k is one of the kinds.
func (k EventKind) Known() bool {
	switch k {
	case Started, CaseStarted, CheckStarted, CheckDone, Note, CommandDone, CaseDone:
		return true
	}
	return false
}
