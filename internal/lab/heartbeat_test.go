package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dagger/parity/internal/fault"
)

// connection is a fake SSH connection to a machine with a clock of its own, which answers a number
// of messages and then does as it is told.
type connection struct {
	clock          func() time.Duration
	asked, answers atomic.Int32
	then           func() error
}

func (c *connection) SendRequest(string, bool, []byte) (bool, []byte, error) {
	n := c.asked.Add(1)
	if n > c.answers.Load() {
		return false, nil, c.then()
	}
	answer, err := json.Marshal(pulse{Clock: c.clock(), Ticks: uint64(n) * 10})
	return true, answer, err
}

// running gives a clock that runs so many times as fast as this machine's.
func running(speed float64) func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Duration(float64(time.Since(start)) * speed) }
}

// notes collects what is noted.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, text)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.list, "\n")
}

func TestAMachineThatDoesNotAnswerIsNotedAndHasFailed(t *testing.T) {
	stopped := make(chan struct{})
	defer close(stopped)
	c := &connection{clock: running(1), then: func() error { <-stopped; return nil }}
	c.answers.Store(3)
	var noted notes
	w := watchHeart(c, limits{time.Millisecond, time.Second, 2 * time.Second}, stopped, noted.add)
	select {
	case err := <-w.failed:
		if !strings.Contains(err.Error(), "has not answered for 2s") || c.asked.Load() != 4 || !strings.Contains(noted.String(), "has not answered for 1s") {
			t.Errorf("%v after %d messages; noted: %s", err, c.asked.Load(), noted.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody said that the machine stands still")
	}
}

// A machine that answers late is noted, with the end of its silence, and has not failed.
func TestAMachineThatAnswersLateHasNotFailed(t *testing.T) {
	stopped, answer := make(chan struct{}), make(chan struct{})
	var noted notes
	w := watchHeart(lateAnswer{running(1), answer}, limits{time.Millisecond, time.Millisecond, time.Hour}, stopped, func(text string) {
		noted.add(text)
		if strings.Contains(text, "not answered") {
			close(answer)
		} else {
			close(stopped)
		}
	})
	select {
	case err := <-w.failed:
		t.Error(err)
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("nothing was noted of the machine's answer")
	}
	if !strings.Contains(noted.String(), "answers again") {
		t.Errorf("noted: %s", noted.String())
	}
}

// lateAnswer is a fake SSH connection that answers once it may.
type lateAnswer struct {
	clock  func() time.Duration
	answer chan struct{}
}

func (l lateAnswer) SendRequest(string, bool, []byte) (bool, []byte, error) {
	<-l.answer
	answer, err := json.Marshal(pulse{Clock: l.clock(), Ticks: 1})
	return true, answer, err
}

func TestAMachineThatAnswersIsAskedAgainAndAgain(t *testing.T) {
	for name, then := range map[string]func() error{
		"it answers":     nil,
		"it went away":   func() error { return errors.New("EOF") },
		"it was stopped": func() error { select {} },
	} {
		stopped := make(chan struct{})
		c := &connection{clock: running(1), then: then}
		c.answers.Store(5)
		if then == nil {
			c.answers.Store(1 << 30)
		}
		w := watchHeart(c, limits{time.Millisecond, time.Hour, time.Hour}, stopped, func(string) {})
		for deadline := time.Now().Add(time.Minute); c.asked.Load() < 6 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		close(stopped)
		if c.asked.Load() < 6 {
			t.Errorf("%s: %d messages", name, c.asked.Load())
		}
		select {
		case err := <-w.failed:
			t.Errorf("%s: %v", name, err)
		default:
		}
	}
}

// at is an answer: sent and answered so long after the start, with the machine's clock between.
func at(sent, got, clock time.Duration, ticks uint64) answered {
	start := time.Unix(1e9, 0)
	return answered{start.Add(sent), start.Add(got), pulse{clock, ticks}}
}

func TestAClockIsWrongOnlyWhenNoInstantMakesItRight(t *testing.T) {
	const s = time.Second
	for name, test := range map[string]struct {
		first, next answered
		wrong       bool
	}{
		"right":                      {at(0, 0, 0, 0), at(10*s, 10*s, 10*s, 100), false},
		"a little fast":              {at(0, 0, 0, 0), at(10*s, 10*s, 10*s+s/2, 100), false},
		"too fast":                   {at(0, 0, 0, 0), at(10*s, 10*s, 12*s, 100), true},
		"too slow":                   {at(0, 0, 0, 0), at(10*s, 10*s, 8*s, 100), true},
		"fast, or answered late":     {at(0, 0, 0, 0), at(10*s, 12*s, 12*s, 100), false},
		"slow, or asked early":       {at(0, 2*s, s, 0), at(10*s, 10*s, 9*s, 100), false},
		"too fast, and answers late": {at(0, 2*s, 3*s, 0), at(10*s, 12*s, 30*s, 100), true},
	} {
		var h heart
		first, next := h.take(test.first), h.take(test.next)
		if first != nil || (next != nil) != test.wrong || next != nil && !errors.Is(next, ErrClock) {
			t.Errorf("%s: %v, %v", name, first, next)
		}
	}
}

// A clock that goes wrong long after the start is found within minutes.
func TestAClockThatGoesWrongLaterIsFound(t *testing.T) {
	var h heart
	clock, wrong := time.Duration(0), time.Duration(0)
	for now := time.Duration(0); now < 2*time.Hour; now += time.Second {
		if now > time.Hour {
			clock += time.Second / 5
		}
		clock += time.Second
		if err := h.take(at(now, now, clock, uint64(now/time.Second*10))); err != nil {
			wrong = now
			break
		}
	}
	if wrong < time.Hour || wrong > time.Hour+5*time.Minute {
		t.Errorf("it was found after %s", wrong)
	}
}

func TestAClockThatShowsMoreThanPassedSinceTheBootIsWrong(t *testing.T) {
	start := time.Unix(1e9, 0)
	if err := sinceBoot(at(6*time.Second, 7*time.Second, 5*time.Second, 0), start); err != nil {
		t.Error(err)
	}
	if err := sinceBoot(at(6*time.Second, 7*time.Second, 15*time.Second, 0), start); !errors.Is(err, ErrClock) {
		t.Errorf("the error is %v", err)
	}
}

// That a machine's timer did not fire between two messages is counted.
func TestAMachineThatStoodStillIsCounted(t *testing.T) {
	var h heart
	for i, ticks := range []uint64{10, 20, 20, 21, 40, 40, 50} {
		now := time.Duration(i) * time.Second
		if err := h.take(at(now, now, now, ticks)); err != nil {
			t.Fatal(err)
		}
	}
	if h.stalls != 3 {
		t.Errorf("%d times", h.stalls)
	}
}

func TestTimerInterruptsAreSummed(t *testing.T) {
	const table = "           CPU0       CPU1\n  4:       0       9   IO-APIC   4-edge   ttyS0\nNMI:  1  2   Non-maskable interrupts\nLOC:        1200        34   Local timer interrupts\n"
	if n, err := timerInterrupts([]byte(table)); err != nil || n != 1234 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := timerInterrupts([]byte("NMI: 1\n")); err == nil {
		t.Error("a table without the line is no error")
	}
}

func TestTheCountersFrequencyIsOneOfAProcessors(t *testing.T) {
	if khz := counterKHz(); khz != 0 && (khz < 100e3 || khz > 20e6) {
		t.Errorf("%d kHz", khz)
	}
	for info, want := range map[string]bool{
		"flags\t\t: fpu constant_tsc nonstop_tsc\n": true,
		"flags\t\t: fpu constant_tsc\n":             false,
		"model name\t: constant_tsc nonstop_tsc\n":  false,
	} {
		if constantCounter([]byte(info)) != want {
			t.Errorf("%q", info)
		}
	}
}

// What a machine's faults give, on real emulated machines. The tests of internal/run have the others.
func TestAnEmulatedMachineThatFails(t *testing.T) {
	for _, test := range []struct {
		fault fault.Fault
		cause error
		want  string // in the error; empty if there is none
	}{
		{fault.LabFreezes, nil, ""},
		{fault.LabClockFast, ErrClock, "since the machine's boot"},
	} {
		t.Run(string(test.fault), func(t *testing.T) {
			t.Parallel()
			var noted notes
			o := options(t, Emulated, fmt.Sprintf("sleep %d", int((misbehavesAfter+freezesFor)/time.Second)+2))
			o.Fault, o.Notes = test.fault, noted.add
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			res, err := Run(ctx, o)
			switch {
			case test.want == "" && (err != nil || res.ExitCode != 0):
				t.Errorf("%d, %v", res.ExitCode, err)
			case test.want == "" && !(strings.Contains(noted.String(), "has not answered for 10s") && strings.Contains(noted.String(), "answers again")):
				t.Errorf("noted: %s", noted.String())
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrClock) != (test.cause != nil)):
				t.Errorf("the error is %v", err)
			}
		})
	}
}
