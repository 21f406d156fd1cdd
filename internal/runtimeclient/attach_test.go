package runtimeclient_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
)

// wire is a way to a runtime.
type wire struct{ net.Conn }

func (wire) Ended() (error, bool) { return errors.New("the wire was cut"), true }

func dial(t *testing.T, r *runtimeclient.Runtime) wire {
	t.Helper()
	conn, err := r.Dial(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return wire{conn}
}

func TestAttach(t *testing.T) {
	r := start(t, command(t, ""))
	way := dial(t, r)
	attached, err := runtimeclient.Attach(bounded(t), way)
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	d := attached.Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	code, err := d.Exec(bounded(t), "w", []string{"/bin/sh", "-c", "cat; exit 5"}, driver.Streams{In: strings.NewReader("in"), Out: &out})
	if code != 5 || err != nil || out.String() != "in" {
		t.Errorf("exec: %d, %v, %q", code, err, &out)
	}

	way.Close()
	if _, _, err := d.Find(bounded(t), "w"); err == nil || !strings.Contains(err.Error(), "the connection to the runtime ended during Find: the wire was cut") {
		t.Errorf("got %v", err)
	}
	if _, found, err := r.Driver().Find(bounded(t), "w"); err != nil || !found {
		t.Errorf("the runtime does not go on: %v, %v", found, err)
	}
}

func TestAttachToNothing(t *testing.T) {
	here, there := net.Pipe()
	there.Close()
	if _, err := runtimeclient.Attach(bounded(t), wire{here}); err == nil || !strings.Contains(err.Error(), "the connection to the runtime ended during Info: the wire was cut") {
		t.Errorf("got %v", err)
	}
	if _, err := here.Write([]byte("x")); err == nil {
		t.Error("the way is open still")
	}
}

// Close closes the way, and may be called again.
func TestCloseOfAnAttachedRuntime(t *testing.T) {
	r := start(t, command(t, ""))
	way := dial(t, r)
	attached, err := runtimeclient.Attach(bounded(t), way)
	if err != nil {
		t.Fatal(err)
	}
	attached.Close()
	if _, err := way.Write([]byte("x")); err == nil {
		t.Error("the way is open still")
	}
	attached.Close()
}
