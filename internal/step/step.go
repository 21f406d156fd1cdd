// Package step runs cases where it stands: in a lab, whoever made it. It prints events, one JSON object a line.
package step

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/contract"
	"dagger/parity/internal/cases/egress"
	"dagger/parity/internal/cases/imageparity"
	"dagger/parity/internal/cases/remoteagent"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/report"
	"dagger/parity/internal/standin"
)

// Catalogue is every case that a step can run.
func Catalogue() catalogue.Catalogue { return catalogue.New(contract.Checks()) }

// runners run the cases of a scenario.
var runners = map[string]func(context.Context, cases.Env, catalogue.Case) report.Case{
	contract.Scenario:    contract.Run,
	egress.Scenario:      egress.Run,
	imageparity.Scenario: imageparity.Run,
	remoteagent.Scenario: remoteagent.Run,
}

// Setup says what a step runs, with what. The run writes it outside of the lab, and the step reads
// it inside.
type Setup struct {
	RunID string
	Cases []string // ids, in the order in which they run

	// Contracts are the ids of all cases of the contract that the run has, in whichever lab.
	Contracts []string

	// Broken are those of the contract's cases that have ended and did not pass, in another lab.
	Broken []report.Case
	cases.Tools
}

// WriteFile writes the setup to a file, as ReadSetup reads it.
func (s Setup) WriteFile(file string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// ReadSetup reads a setup from a file. A field that it does not know is an error: the file is
// another version's.
func ReadSetup(file string) (s Setup, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return s, fmt.Errorf("%s is not a setup of this version of parity: %w", file, err)
	}
	return s, nil
}

// Run runs the cases one after another and writes their events to w. A case that stands on a check
// of the contract that did not pass is not run, and says so. The error is about the step itself;
// what became of the cases is in the events.
func Run(ctx context.Context, o Setup, w io.Writer) error {
	scratch := os.Getenv(lab.EnvScratch)
	if scratch == "" {
		return fmt.Errorf("%s is not set: a step runs in a lab; start it with `parity egress`, or `parity lab -- ...`", lab.EnvScratch)
	}
	plans, err := planned(o.Cases)
	if err != nil {
		return err
	}
	contracts, err := planned(o.Contracts)
	if err != nil {
		return err
	}
	if o.Remote.Target != "" {
		plans = catalogue.Visiting(plans)
	}
	if o.StandIn {
		if err := lab.LoadModules(standin.Modules...); err != nil {
			return err
		}
		if o.MSB, err = standin.Install(filepath.Join(scratch, "standin")); err != nil {
			return fmt.Errorf("install the stand-in for msb: %w", err)
		}
	}
	events := misbehaving(emitter(w))
	head, err := describe(o.RunID)
	if err != nil {
		return err
	}
	events(report.Event{Time: time.Now(), Kind: report.Started, Head: &head})
	env := cases.Env{RunID: o.RunID, Scratch: scratch, Emit: events, Tools: o.Tools}
	// The stand-in's speed says nothing of microVMs, nor does this lab's where they are elsewhere.
	if visits := o.Remote.Target != "" && slices.ContainsFunc(plans, catalogue.IsRemote); !o.StandIn && !visits {
		env.Unit = measure(ctx, env)
	}
	broken := map[string]report.Case{} // what became of the contract's cases that did not pass
	for _, result := range o.Broken {
		broken[result.ID] = result
	}
	for i, plan := range plans {
		if fault.On(fault.CaseSkipped) && i == len(plans)-1 {
			break
		}
		if reason := missing(plan, contracts, broken); reason != "" {
			env.NotRun(plan, reason)
			continue
		}
		if result := runners[plan.Scenario](ctx, env, plan); plan.IsContract() && result.Verdict != report.Pass {
			broken[plan.ID()] = result
		}
	}
	return nil
}

// planned gives the cases with the ids.
func planned(ids []string) ([]catalogue.Case, error) {
	plans := make([]catalogue.Case, len(ids))
	for i, id := range ids {
		var ok bool
		if plans[i], ok = Catalogue().ByID(id); !ok {
			return nil, fmt.Errorf("no case has the id %q; `parity list` has those that there are", id)
		}
	}
	return plans, nil
}

// missing says why a case cannot be run: a check of a contract that it stands on and that did not
// pass; empty when it can.
func missing(plan catalogue.Case, contracts []catalogue.Case, broken map[string]report.Case) string {
	for _, contract := range contracts {
		if result, ok := broken[contract.ID()]; ok {
			if check := plan.Missing(contracts, contract, result); check != "" {
				return "it was not run: " + catalogue.NotWithout(contract.ID(), check)
			}
		}
	}
	return ""
}

// measure measures the lab's speed and says it. It is 0 when that cannot be: the cases then say
// what is wrong.
func measure(ctx context.Context, env cases.Env) time.Duration {
	took, err := cases.MeasureLab(ctx, env)
	e := report.Event{Time: time.Now(), Kind: report.Note}
	if err != nil {
		e.Text = fmt.Sprintf("the lab's speed is not known: %v", err)
		env.Emit(e)
		return 0
	}
	e.BareCreate = took
	e.Text = fmt.Sprintf("MicroSandbox itself creates a bare sandbox here in %s", report.Elapsed(took))
	if took > cases.Nominal {
		e.Text += fmt.Sprintf(", and deadlines are made for %s: they are longer by as much", cases.Nominal)
	}
	env.Emit(e)
	return took
}

// emitter gives a function that writes an event as a line. It may be called from any goroutine.
func emitter(w io.Writer) func(report.Event) {
	var mu sync.Mutex
	enc := json.NewEncoder(w)
	return func(e report.Event) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(e) // nobody reads any more: the run is over
	}
}

// describe says what only the place where the cases run can know.
func describe(runID string) (report.Head, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return report.Head{}, err
	}
	return report.Head{
		RunID:  runID,
		KVM:    os.Getenv(lab.EnvLab),
		Kernel: unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Version[:]),
	}, nil
}
