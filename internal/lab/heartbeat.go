package lab

import (
	"fmt"
	"time"
)

// An emulated machine can stand still: its processor halts and the interrupt of its timer is lost. A
// message on the command channel is an interrupt too, and wakes it. It can also be gone for good.
const (
	beat    = time.Second      // how often a message is sent
	silence = 60 * time.Second // after how long without an answer the machine has failed
)

// requester is an SSH connection.
type requester interface {
	SendRequest(name string, wantReply bool, payload []byte) (bool, []byte, error)
}

// heartbeat sends a message every so often until stopped is closed. The channel gets an error once a
// message was not answered for as long as the limit. A connection that breaks is not its business.
func heartbeat(c requester, every, limit time.Duration, stopped <-chan struct{}) <-chan error {
	failed := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			answered := make(chan error, 1)
			go func() {
				_, _, err := c.SendRequest("heartbeat@parity", true, nil)
				answered <- err
			}()
			select {
			case err := <-answered:
				if err != nil {
					return
				}
			case <-stopped:
				return
			case <-time.After(limit):
				failed <- fmt.Errorf("the emulated machine has not answered for %s: it stands still", limit)
				return
			}
			select {
			case <-ticker.C:
			case <-stopped:
				return
			}
		}
	}()
	return failed
}
