package remoteagent

import (
	"context"

	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
)

// machineBeside makes a sandbox on this side if the fault asks for it, and gives what removes it.
func (s *scenario) machineBeside() (stop func(), err error) {
	if !fault.On(fault.MachineBeside) {
		return func() {}, nil
	}
	return s.extra(s.Bench.Here)
}

// machineLeftBehind makes a sandbox on the remote if the fault asks for it, and gives what removes it.
func (s *scenario) machineLeftBehind() (stop func(), err error) {
	if !fault.On(fault.MachineLeftBehind) {
		return func() {}, nil
	}
	return s.extra(s.Bench.MSB)
}

// extra makes a sandbox that nobody asked for, and gives what removes it.
func (s *scenario) extra(where *msb.Client) (stop func(), err error) {
	const name = "extra"
	err = s.Bounded(workspace.UpDeadline, func(ctx context.Context) error {
		return where.Create(ctx, msb.CreateOptions{Name: name, Image: s.Bench.Image, CPUs: 1, MemoryMiB: 256})
	})
	return func() {
		_ = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error { return where.Remove(ctx, name) }) // the case's clean-up says what is left
	}, err
}
