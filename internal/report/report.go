// Package report is what a run says: its types, the folder it is written to (report.json and the files beside it), the table
// for a terminal, and the stream of events by which a run in progress is followed.
package report

import (
	"fmt"
	"time"
)

// Schema names the format of report.json. It changes when a field changes its meaning or goes away.
const Schema = "parity.report/v1"

// Verdict is what became of a check, a case or a run.
type Verdict string

// The verdicts. There is no skip.
const (
	Pass         Verdict = "pass"         // it was seen to hold
	Fail         Verdict = "fail"         // the subject broke a promise
	Inconclusive Verdict = "inconclusive" // the test could not tell
	NotReached   Verdict = "not reached"  // it stands on a check that broke
)

// Report is one run.
type Report struct {
	Schema   string   `json:"schema"`
	Warning  string   `json:"warning,omitempty"` // why this run proves less than it seems to; set by Conclude
	Head     Head     `json:"head"`
	Verdict  Verdict  `json:"verdict"`
	ExitCode int      `json:"exitCode"`
	Selected []string `json:"selected"`           // ids of the cases that the run was asked for, in catalogue order
	Cases    []Case   `json:"cases"`              // what ran, in catalogue order
	Problems []string `json:"problems,omitempty"` // what is wrong with the run itself; any makes it inconclusive at best

	Differences []Difference  `json:"differences,omitempty"` // between the two providers, those that are meant to be included
	Labs        []Lab         `json:"labs,omitempty"`
	Started     time.Time     `json:"started"`
	Elapsed     time.Duration `json:"elapsedNanoseconds"`
}

// Head says what was run on what.
type Head struct {
	RunID        string       `json:"runId"`
	Parity       string       `json:"parity"`    // this program's version
	KVM          string       `json:"kvm"`       // native or emulated
	KVMReason    string       `json:"kvmReason"` // why that one
	Kernel       string       `json:"kernel"`    // the kernel the microVMs ran on, uname -r and -v
	MicroSandbox MicroSandbox `json:"microsandbox"`
	Subject      Subject      `json:"subject"`
	External     *External    `json:"external,omitempty"` // the external provider, where the run has one
	Agent        *Agent       `json:"agent,omitempty"`    // what remote-agent serves as the agent, where that is not the subject itself
	Remote       string       `json:"remote,omitempty"`   // the remote machine of remote-agent, ssh://USER@HOST:PORT, where it is not Parity's own
	Patience     float64      `json:"patience,omitempty"` // what the deadlines of the cases were multiplied by, if not 1
	Fault        string       `json:"fault,omitempty"`    // what Parity's own parts were told to do wrong
}

// MicroSandbox is the runtime that was used.
type MicroSandbox struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Pin     string `json:"pin"`     // "pinned" when SHA256 is the one that was asked for, else "unpinned"
	StandIn bool   `json:"standIn"` // a stand-in for msb was used: the run proves nothing of MicroSandbox
}

// Subject is the workspace CLI under test.
type Subject struct {
	Kind    string   `json:"kind"` // "reference" or "file"
	Name    string   `json:"name"`
	SHA256  string   `json:"sha256"`
	Adapter *Adapter `json:"adapter,omitempty"` // by which it was spoken to; none: it speaks the contract
}

// Adapter is a file that says how a workspace CLI is spoken to.
type Adapter struct {
	Name       string   `json:"name"` // the file's
	For        string   `json:"for"`  // which CLI it is for, as it says
	SHA256     string   `json:"sha256"`
	Deviations []string `json:"deviations,omitempty"` // what it reads otherwise than the contract has it
}

// External is the external provider.
type External struct {
	Kind       string `json:"kind"`                 // "reference", "manifest", or "file": a runtime around which Parity made the manifest
	Name       string `json:"name"`                 // as its manifest has it; of a "file", the file's name
	Version    string `json:"version,omitempty"`    // as its manifest has it
	URL        string `json:"url,omitempty"`        // of its manifest, if it came from one; without what may be secret, as the next one
	RuntimeURL string `json:"runtimeUrl,omitempty"` // where its manifest has the runtime
	SHA256     string `json:"sha256"`               // of its runtime
}

// Agent is what remote-agent serves as the subject's agent, where that is not the subject's own
// file.
type Agent struct {
	Name   string `json:"name"` // of the file
	SHA256 string `json:"sha256"`
}

// Difference is one observation that a case made in another way, or not at all, with the other provider.
type Difference struct {
	Case        string `json:"case"` // scenario/name
	Phase       string `json:"phase"`
	Observation string `json:"observation"`
	Builtin     string `json:"builtin"`
	External    string `json:"external"`
	Named       string `json:"named,omitempty"` // why it is meant to be; empty when it is not
}

// String puts the two values side by side.
func (d Difference) String() string {
	s := fmt.Sprintf("%s: builtin %q, external %q", Check{Phase: d.Phase, Name: d.Observation}.FullName(), d.Builtin, d.External)
	if d.Named != "" {
		s += " (" + d.Named + ")"
	}
	return s
}

// Lab is one place in which cases ran.
type Lab struct {
	Name  string        `json:"name"`
	Cases []string      `json:"cases"`
	Boot  time.Duration `json:"bootNanoseconds"` // from the start to the first command
	Total time.Duration `json:"totalNanoseconds"`

	// BareCreate is how long MicroSandbox itself took to create a bare sandbox there, before the
	// cases; 0 where it was not measured.
	BareCreate time.Duration `json:"bareCreateNanoseconds,omitempty"`

	// Failed is why the lab failed; empty if it did not. What it had not finished ran once more, in a
	// new lab.
	Failed string `json:"failed,omitempty"`
	// Stalls is how often no interrupt of the emulated machine's timer came between two messages of
	// the heartbeat: the machine stood still, or this one gave it no time.
	Stalls int `json:"stalls,omitempty"`
	// Notes are what was noticed about the emulated machine while it ran.
	Notes []string `json:"notes,omitempty"`
}

// Case is one case that ran.
type Case struct {
	ID           string        `json:"id"` // scenario/provider/name
	RunID        string        `json:"runId"`
	Verdict      Verdict       `json:"verdict"`
	Checks       []Check       `json:"checks"` // in catalogue order
	Observations []Observation `json:"observations,omitempty"`
	Problems     []string      `json:"problems,omitempty"` // such as a clean-up that failed; any makes it inconclusive at best
	Operations   []Operation   `json:"operations,omitempty"`
	Performance  *Performance  `json:"performance,omitempty"` // of a case that measures
	Started      time.Time     `json:"started"`
	Elapsed      time.Duration `json:"elapsedNanoseconds"`
}

// Check is one check of a case.
type Check struct {
	Phase    string  `json:"phase"` // created, restarted or recreated; empty where a check has no phase
	Name     string  `json:"name"`
	Verdict  Verdict `json:"verdict"`
	Expected string  `json:"expected,omitempty"`
	Seen     string  `json:"seen,omitempty"`
	Next     string  `json:"next,omitempty"` // what to do about it; set when it did not pass
	// Deviations are what the adapter read otherwise than the contract has it, where the check
	// stands on that. Such a pass is no plain one.
	Deviations []string `json:"deviations,omitempty"`

	Commands []int         `json:"commands,omitempty"` // numbers of the subject's commands that ended during it, in the case's transcript
	Elapsed  time.Duration `json:"elapsedNanoseconds"`
}

// Observation is one normalised fact that a case recorded, the same for two providers that are at parity.
type Observation struct {
	Phase string `json:"phase"`
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Operation is what the run spent its time on, by kind: an msb command, an upload, an image build.
type Operation struct {
	Name    string        `json:"name"`
	Count   int           `json:"count"`
	Elapsed time.Duration `json:"elapsedNanoseconds"`
}
