// Package fault names the ways in which Parity's own parts can be told to misbehave, so that the self-test can show which check
// catches which fault. One fault at a time is asked for by its name in PARITY_FAULT; without that variable nothing misbehaves.
package fault

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Env is the environment variable that names the fault.
const Env = "PARITY_FAULT"

// Fault is the name of a fault.
type Fault string

// Asked is the fault that this process was asked for, or empty.
var Asked = sync.OnceValue(func() Fault { return Fault(os.Getenv(Env)) })

// Environ is what the environment of a child needs for it to be asked for the same fault.
func Environ() []string {
	if On("") {
		return nil
	}
	return []string{Env + "=" + string(Asked())}
}

// ErrAsked is what a fixture fails with that was told to.
var ErrAsked = errors.New("it was told to fail (" + Env + ")")

// Failing is ErrAsked when this process was asked for the fault, else nil.
func Failing(f Fault) error {
	if On(f) {
		return ErrAsked
	}
	return nil
}

// On tells whether this process was asked for the fault.
func On(f Fault) bool { return f == Asked() }

// Check fails when this process was asked for a fault that does not exist: a misspelt one would show nothing.
func Check() error {
	if On("") {
		return nil
	}
	names := ""
	for _, e := range Catalogue() {
		if On(e.Fault) {
			return nil
		}
		names += " " + string(e.Fault)
	}
	return fmt.Errorf("%s=%s: expected one of%s", Env, Asked(), names)
}
