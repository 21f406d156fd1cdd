package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An emulated machine can stand still: its processor halts and the interrupt of its timer is lost. A
// message on the command channel is an interrupt too, and wakes it. It can also be gone for good.
// And its clock can run at another speed: then each deadline in it is another one.
const (
	clockOff = 0.1         // by how much the machine's clock may be faster or slower
	rebase   = time.Minute // over how long the clocks are compared
	tickEach = 100 * time.Millisecond
)

// ErrClock is the cause of the error about a lab whose clock runs too fast or too slow.
var ErrClock = errors.New("the emulated machine's clock is wrong")

const heartbeatRequest = "heartbeat@parity"

// pulse is what an emulated machine answers to a message of the heartbeat.
type pulse struct {
	Clock time.Duration // its monotonic clock
	Ticks uint64        // how many interrupts of its timers its processors have had
}

// takePulse returns the pulse of the machine that this process runs on.
func takePulse() (p pulse, err error) {
	var clock unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock); err != nil {
		return p, err
	}
	p.Clock = time.Duration(clock.Nano())
	interrupts, err := os.ReadFile("/proc/interrupts")
	if err != nil {
		return p, err
	}
	p.Ticks, err = timerInterrupts(interrupts)
	return p, err
}

// timerInterrupts sums the line of /proc/interrupts that counts each processor's local timer.
func timerInterrupts(table []byte) (sum uint64, err error) {
	for line := range bytes.Lines(table) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || string(fields[0]) != "LOC:" {
			continue
		}
		for _, field := range fields[1:] {
			n, err := strconv.ParseUint(string(field), 10, 64)
			if err != nil {
				break // the description begins
			}
			sum += n
		}
		return sum, nil
	}
	return 0, errors.New("/proc/interrupts has no line LOC: of the local timers")
}

// answerPulse answers the messages of the heartbeat, in the emulated machine.
func answerPulse(request string) ([]byte, bool) {
	if request != heartbeatRequest {
		return nil, false
	}
	p, err := takePulse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "parity: the heartbeat:", err)
		return nil, false
	}
	answer, err := json.Marshal(p)
	return answer, err == nil
}

// tick keeps a timer of this machine pending. One that counts no interrupt between two messages has
// therefore lost one.
func tick() {
	for range time.Tick(tickEach) {
	}
}

// requester is an SSH connection.
type requester interface {
	SendRequest(name string, wantReply bool, payload []byte) (bool, []byte, error)
}

// heart follows an emulated machine's answers.
type heart struct {
	base, last answered
	stalls     int // how often no interrupt of the timer came between two messages
}

// answered is a message and its answer.
type answered struct {
	sent, got time.Time
	pulse
}

// take takes the next answer. The error says that the clock is wrong.
//
// The machine read its clock after the message was sent and before the answer came. So what its
// clock advanced by has a least and a most on this side's clock, and a wrong clock is told only
// when no instant between them would make it right: that the machine is busy makes nothing wrong.
func (h *heart) take(a answered) error {
	if h.base.got.IsZero() {
		h.base, h.last = a, a
		return nil
	}
	if a.sent.Sub(h.last.got) > 5*tickEach && a.Ticks-h.last.Ticks < 2 {
		h.stalls++
	}
	h.last = a
	advanced, least, most := a.Clock-h.base.Clock, a.sent.Sub(h.base.got), a.got.Sub(h.base.sent)
	if float64(advanced) > float64(most)*(1+clockOff) || float64(advanced) < float64(least)*(1-clockOff) {
		return fmt.Errorf("%w: it advanced by %s in %s", ErrClock, advanced.Round(time.Millisecond), most.Round(time.Millisecond))
	}
	if least > rebase {
		h.base = a
	}
	return nil
}

// sinceBoot says whether a machine's clock, which began at 0 when it booted, shows more time than
// passed since then. A clock that is too fast is so from the boot on.
func sinceBoot(a answered, booted time.Time) error {
	if most := a.got.Sub(booted); float64(a.Clock) > float64(most)*(1+clockOff) {
		return fmt.Errorf("%w: it shows %s since the machine's boot, which was %s ago", ErrClock, a.Clock.Round(time.Millisecond), most.Round(time.Millisecond))
	}
	return nil
}

// limits are how often a message is sent and how long its answer may take.
type limits struct{ beat, quiet, silence time.Duration }

var usual = limits{beat: time.Second, quiet: 10 * time.Second, silence: time.Minute}

// watched is a machine whose heartbeat is watched.
type watched struct {
	failed chan error // gets an error once the machine has failed
	mu     sync.Mutex
	heart  heart
}

// stalls is how often no interrupt of the machine's timer came between two messages.
func (w *watched) stalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heart.stalls
}

// watchHeart sends a message every so often until stopped is closed. The machine has failed once a
// message was not answered, or when its clock is wrong. A connection that breaks is not its
// business. note is told of a long silence and of its end, by one goroutine.
func watchHeart(c requester, l limits, stopped <-chan struct{}, note func(string)) *watched {
	w := &watched{failed: make(chan error, 1)}
	go func() {
		ticker := time.NewTicker(l.beat)
		defer ticker.Stop()
		for {
			a, err := ask(c, l, stopped, note)
			if errors.Is(err, errSilent) {
				w.failed <- err
			}
			if err != nil {
				return
			}
			w.mu.Lock()
			err = w.heart.take(a)
			w.mu.Unlock()
			if err != nil {
				w.failed <- err
				return
			}
			select {
			case <-ticker.C:
			case <-stopped:
				return
			}
		}
	}()
	return w
}

var (
	errSilent  = errors.New("the emulated machine stands still")
	errStopped = errors.New("the heartbeat was stopped")
)

// ask sends one message and waits for its answer.
func ask(c requester, l limits, stopped <-chan struct{}, note func(string)) (answered, error) {
	type reply struct {
		answered
		err error
	}
	replies := make(chan reply, 1)
	sent := time.Now()
	go func() {
		ok, payload, err := c.SendRequest(heartbeatRequest, true, nil)
		r := reply{answered: answered{sent: sent, got: time.Now()}, err: err}
		if err == nil && ok {
			r.err = json.Unmarshal(payload, &r.pulse)
		} else if err == nil {
			r.err = errors.New("the machine refuses the message")
		}
		replies <- r
	}()
	noticed, over := time.After(l.quiet), time.After(l.silence)
	long := false
	for {
		select {
		case r := <-replies:
			if long && r.err == nil {
				note(fmt.Sprintf("the emulated machine answers again, after %s", r.got.Sub(sent).Round(time.Second)))
			}
			return r.answered, r.err
		case <-stopped:
			return answered{}, errStopped
		case <-noticed:
			long = true
			note(fmt.Sprintf("the emulated machine has not answered for %s; it has failed at %s", l.quiet, l.silence))
		case <-over:
			return answered{}, fmt.Errorf("%w: it has not answered for %s", errSilent, l.silence)
		}
	}
}
