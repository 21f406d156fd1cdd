package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// patience is how long a registry may say nothing, be it the answer to a request or more of it.
const patience = 30 * time.Second

// errStalled is the error of a registry that has said nothing for too long.
var errStalled = errors.New("the registry said nothing more")

// stallGuard is a transport that gives up requests to which nothing comes.
type stallGuard struct {
	http.RoundTripper
	patience time.Duration
}

var guarded = stallGuard{remote.DefaultTransport, patience}

// RoundTrip implements http.RoundTripper.
func (g stallGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	clock := time.AfterFunc(g.patience, func() { cancel(fmt.Errorf("%w for %s", errStalled, g.patience)) })
	answer, err := g.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		clock.Stop()
		cancel(nil)
		return nil, stalledOr(ctx, err)
	}
	answer.Body = &guardedBody{ReadCloser: answer.Body, ctx: ctx, clock: clock, guard: g, cancel: cancel}
	return answer, nil
}

// guardedBody is a body whose clock begins anew with each read that brings something.
type guardedBody struct {
	io.ReadCloser
	ctx    context.Context
	clock  *time.Timer
	guard  stallGuard
	cancel context.CancelCauseFunc
}

// Read implements io.Reader.
func (b *guardedBody) Read(p []byte) (int, error) {
	b.clock.Reset(b.guard.patience)
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.clock.Stop()
	}
	return n, stalledOr(b.ctx, err)
}

// Close implements io.Closer.
func (b *guardedBody) Close() error {
	b.clock.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// stalledOr gives the error of a stall, if that is why there is one.
func stalledOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}
