package lab

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// connection is a fake SSH connection that answers a number of messages, and then as it is told.
type connection struct {
	asked, answers atomic.Int32
	then           func() error
}

func (c *connection) SendRequest(string, bool, []byte) (bool, []byte, error) {
	if c.asked.Add(1) <= c.answers.Load() {
		return false, nil, nil
	}
	return false, nil, c.then()
}

func TestAMachineThatDoesNotAnswerHasFailed(t *testing.T) {
	stopped := make(chan struct{})
	defer close(stopped)
	c := &connection{then: func() error { <-stopped; return nil }}
	c.answers.Store(3)
	select {
	case err := <-heartbeat(c, time.Millisecond, 2*time.Second, stopped):
		if !strings.Contains(err.Error(), "has not answered for 2s") || c.asked.Load() != 4 {
			t.Errorf("%v after %d messages", err, c.asked.Load())
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody said that the machine stands still")
	}
}

func TestAMachineThatAnswersIsAskedAgainAndAgain(t *testing.T) {
	for name, then := range map[string]func() error{
		"it answers":     func() error { return nil },
		"it went away":   func() error { return errors.New("EOF") },
		"it was stopped": nil,
	} {
		stopped := make(chan struct{})
		c := &connection{then: then}
		if then == nil {
			c.then = func() error { <-stopped; return nil }
		}
		c.answers.Store(5)
		failed := heartbeat(c, time.Millisecond, time.Hour, stopped)
		for deadline := time.Now().Add(time.Minute); c.asked.Load() < 6 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		close(stopped)
		if c.asked.Load() < 6 {
			t.Errorf("%s: %d messages", name, c.asked.Load())
		}
		select {
		case err := <-failed:
			t.Errorf("%s: %v", name, err)
		default:
		}
	}
}
