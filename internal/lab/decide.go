package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Decision is where a run's KVM comes from, and why. It is made once and kept for the run.
type Decision struct {
	KVM    KVM // Native or Emulated
	Reason string
}

// Checks are how Decide sees whether KVM works on this machine.
type Checks struct {
	// Doctor says whether the CPU and the device have what KVM needs: `msb doctor`.
	Doctor func(context.Context) error
	// Trial is a command that boots one tiny microVM and exits with 0 if it came up; it is run in a native lab. A device that
	// opens may still be unable to boot a kernel.
	Trial []string
	Cache string // as in Options
}

// trialDeadline is how long the trial's microVM has to boot. A native one takes about a second.
const trialDeadline = time.Minute

// Decide gives the KVM to use when mode was asked for. An error says why native KVM, asked for by name, cannot be had.
func Decide(ctx context.Context, mode KVM, c Checks) (Decision, error) {
	switch mode {
	case Emulated:
		return Decision{Emulated, "emulated was asked for"}, nil
	case Native:
		if err := checkDevice(ctx, c); err != nil {
			return Decision{}, fmt.Errorf("native KVM was asked for and does not work: %w; --kvm auto or emulated runs without it", err)
		}
		return Decision{Native, "native was asked for"}, nil
	}
	err := checkDevice(ctx, c)
	if err == nil {
		err = trial(ctx, c)
	}
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	if err != nil {
		return Decision{Emulated, strings.TrimSpace(err.Error())}, nil
	}
	return Decision{Native, "a trial microVM booted on this machine's KVM"}, nil
}

func checkDevice(ctx context.Context, c Checks) error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("this machine has no /dev/kvm")
	}
	if err != nil {
		return fmt.Errorf("/dev/kvm cannot be opened: %w", err)
	}
	f.Close()
	if err := c.Doctor(ctx); err != nil {
		return fmt.Errorf("msb doctor sees no working KVM: %w", err)
	}
	return nil
}

func trial(ctx context.Context, c Checks) error {
	ctx, cancel := context.WithTimeout(ctx, trialDeadline)
	defer cancel()
	var out bytes.Buffer
	res, err := Run(ctx, Options{KVM: Native, Argv: c.Trial, Env: os.Environ(), Dir: "/", Cache: c.Cache, Stdout: &out, Stderr: &out})
	if err != nil {
		return fmt.Errorf("no trial microVM booted on this machine's KVM within %s: %w", trialDeadline, err)
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("no trial microVM booted on this machine's KVM: %s", strings.TrimSpace(out.String()))
	}
	return nil
}
