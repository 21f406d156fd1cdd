package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/msb"
)

// OverdueError is the error of an operation that its deadline ended.
type OverdueError struct {
	Had   time.Duration // how long the operation had
	Cause error
}

// Error says what ended and how long it had.
func (e *OverdueError) Error() string { return fmt.Sprintf("%v; it had %s", e.Cause, e.Had) }

// Unwrap gives the operation's own error, which need not say that a deadline passed.
func (e *OverdueError) Unwrap() []error { return []error{e.Cause, context.DeadlineExceeded} }

// Bounded calls do with a deadline within a context's. The error is an *OverdueError when it is
// that deadline that passed.
func Bounded(ctx context.Context, had time.Duration, do func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, had)
	defer cancel()
	err := do(within)
	if err != nil && errors.Is(within.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return &OverdueError{Had: had, Cause: err}
	}
	return err
}

// slowAt is the number of units above which a bare create tells that the lab has become slow. What
// is asked of a subject is to take half of its deadline at most in a lab of the measured speed; in
// one that is more than twice as slow, that it did not come to an end says nothing.
const slowAt = 2

// bareDeadline bounds a bare create, which takes up to three units in a sound lab.
const bareDeadline = 5 * time.Minute

// NextSlow is what to do about a lab that is slow.
const NextSlow = "run it again on a machine that is less busy, or give more time with --patience"

// Slow says why an operation that its deadline ended may be the lab's doing: MicroSandbox itself is
// slow now too, or boots nothing. It is empty when the lab is as fast as the deadlines are made
// for, or when err is of something else. It measures when it is asked.
func (b *Bench) Slow(ctx context.Context, e Env, err error) string {
	if _, overdue := errors.AsType[*OverdueError](err); !overdue {
		return ""
	}
	var took time.Duration
	bare := Bounded(ctx, e.Within(bareDeadline), func(ctx context.Context) (err error) {
		took, err = b.Bare(ctx)
		return err
	})
	limit := e.Within(slowAt * Nominal)
	switch {
	case bare != nil:
		return "MicroSandbox does not boot a bare sandbox either: " + bare.Error()
	case took > limit:
		return fmt.Sprintf("the lab is slow: MicroSandbox itself took %s to create a bare sandbox, and the deadline is made for less than %s", took, limit)
	}
	return ""
}

// MeasureLab gives how long MicroSandbox itself takes to create a bare sandbox in the lab, with a
// store of its own.
func MeasureLab(ctx context.Context, e Env) (took time.Duration, err error) {
	var c Cleanup
	defer func() { err = errors.Join(append(c.Run(), err)...) }()
	if _, err := NewLink(e.RunID, &c); err != nil {
		return 0, err
	}
	// MicroSandbox makes sockets below: the path is short.
	dir := filepath.Join(e.Scratch, "u")
	c.Add("the folder of the lab's measurement", func(context.Context) error { return os.RemoveAll(dir) })
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	image, archive := "parity.test/unit:"+e.RunID, filepath.Join(dir, "image.tar")
	img, err := images.Build(images.Spec{Nonce: Nonce("unit")})
	if err == nil {
		err = images.WriteDockerArchive(archive, image, img)
	}
	if err != nil {
		return 0, err
	}
	client := &msb.Client{Path: e.MSB, Home: filepath.Join(dir, "m")}
	err = Bounded(ctx, e.Within(bareDeadline), func(ctx context.Context) (err error) {
		if err = client.Load(ctx, archive); err != nil {
			return err
		}
		took, err = createBare(ctx, client, image)
		return err
	})
	return took, err
}

// bareName is the name of a bare sandbox.
const bareName = "parity-bare"

// createBare creates a bare sandbox and removes it, also one whose create was cut off, and gives
// how long the create took.
func createBare(ctx context.Context, client *msb.Client, image string) (time.Duration, error) {
	started := time.Now()
	err := client.Create(ctx, msb.CreateOptions{Name: bareName, Image: image, NoPull: true, CPUs: 1, MemoryMiB: 256})
	took := time.Since(started)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanDeadline)
	defer cancel()
	if removed := client.Remove(ctx, bareName); err == nil {
		err = removed
	}
	return took, err
}
