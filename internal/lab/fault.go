package lab

import (
	"syscall"
	"time"

	"dagger/parity/internal/fault"
)

// How an emulated machine misbehaves when its lab was told to.
const (
	misbehavesAfter = 3 * time.Second // from the start of its command
	freezesFor      = 15 * time.Second
	clockFactor     = 3
)

// misbehave makes the machine fail as the fault says, until stopped is closed.
func (k *keeper) misbehave(stopped <-chan struct{}) {
	var do func()
	signal := func(s syscall.Signal) { _ = k.qemu.Signal(s) } // a machine that ended needs none
	switch k.Fault {
	case fault.LabFreezes:
		do = func() {
			signal(syscall.SIGSTOP)
			select {
			case <-time.After(freezesFor):
			case <-stopped:
			}
			signal(syscall.SIGCONT)
		}
	case fault.LabHangs:
		do = func() { signal(syscall.SIGSTOP) }
	case fault.LabDies, fault.LabDiesOnce:
		do = func() { signal(syscall.SIGKILL) }
	default:
		return
	}
	go func() {
		select {
		case <-time.After(misbehavesAfter):
			do()
		case <-stopped:
		}
	}()
}

// misclocked is the frequency that the machine is told of its time stamp counter: its clock goes
// wrong by as much as that is.
func misclocked(f fault.Fault, khz int) int {
	switch f {
	case fault.LabClockFast:
		return khz / clockFactor
	case fault.LabClockSlow:
		return khz * clockFactor
	}
	return khz
}
