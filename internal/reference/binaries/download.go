package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Download says how patient a download is. The zero value has what a user wants.
type Download struct {
	Stall    time.Duration // how long nothing may come, be it an answer or more of it: 30 s
	Wait     time.Duration // before the second attempt, and twice as long before each one after it: 1 s
	Attempts uint          // 4
}

const (
	maxBytes     = 1 << 30
	maxRedirects = 10
	maxWait      = 30 * time.Second
)

func (d Download) withDefaults() Download {
	if d.Stall == 0 {
		d.Stall = 30 * time.Second
	}
	if d.Wait == 0 {
		d.Wait = time.Second
	}
	if d.Attempts == 0 {
		d.Attempts = 4
	}
	return d
}

// errStalled is a time-out of this package's own.
var errStalled = errors.New("nothing came")

// statusError is an answer that is not the file.
type statusError struct {
	status string
	code   int
}

func (e *statusError) Error() string { return "expected the answer 200, seen " + e.status }

// passing tells that the server may answer otherwise soon.
func (e *statusError) passing() bool {
	return e.code == http.StatusRequestTimeout || e.code == http.StatusTooManyRequests || e.code >= 500
}

// fetch gives what is at a URL to take, whose error is final, as is most that can go wrong. What may go away by itself is tried again:
// time-outs and the answers 408, 429 and 5xx. take may be called more than once.
func (d Download) fetch(ctx context.Context, address string, take func(io.Reader) error) error {
	d = d.withDefaults()
	waits := backoff.NewExponentialBackOff()
	waits.InitialInterval, waits.Multiplier, waits.MaxInterval = d.Wait, 2, maxWait
	attempts := 0
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		attempts++
		return struct{}{}, retryable(ctx, d.try(ctx, address, take))
	}, backoff.WithBackOff(waits), backoff.WithMaxTries(d.Attempts), backoff.WithMaxElapsedTime(0))
	var final *backoff.PermanentError
	if errors.As(err, &final) {
		err = final.Unwrap()
	}
	var later *delayed
	if errors.As(err, &later) {
		err = later.err
	}
	if err != nil && attempts > 1 {
		err = fmt.Errorf("%w (after %d attempts)", err, attempts)
	}
	if err != nil {
		return fmt.Errorf("GET %s: %w", Redacted(address), err)
	}
	return nil
}

// Get gives what is at a URL, which may be a megabyte.
func (d Download) Get(ctx context.Context, address string) (content []byte, err error) {
	const limit = 1 << 20
	err = d.fetch(ctx, address, func(body io.Reader) error {
		content, err = io.ReadAll(io.LimitReader(body, limit+1))
		if err == nil && len(content) > limit {
			err = fmt.Errorf("expected at most %d bytes, seen more", limit)
		}
		return err
	})
	return content, err
}

// Redacted is a URL as it may be shown: what may be a secret, its user and its query, is left out.
func Redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "a URL that cannot be read"
	}
	if u.User != nil {
		u.User = url.User("xxxxx")
	}
	if u.RawQuery != "" {
		u.RawQuery = "xxxxx"
	}
	u.Fragment = ""
	return u.String()
}

// ErrNetwork is what the error of a download is when the server was not reached, or did not send
// all of its answer, or said that it cannot answer now: nothing is known of what is at the URL.
var ErrNetwork = errors.New("the network")

// networkError is such an error, with its own words.
type networkError struct{ error }

func (e *networkError) Unwrap() error        { return e.error }
func (e *networkError) Is(target error) bool { return target == ErrNetwork }

var errRedirects = fmt.Errorf("expected at most %d redirects, seen another", maxRedirects)

// retryable marks what is final.
func retryable(ctx context.Context, err error) error {
	var status *statusError
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
	case errors.As(err, &status) && status.passing(),
		errors.Is(err, errStalled), errors.As(err, &timeout) && timeout.Timeout():
		return err
	}
	return backoff.Permanent(err)
}

// delayed is an error after which the server said how long to wait.
type delayed struct {
	err  error
	wait *backoff.RetryAfterError
}

func (e *delayed) Error() string   { return e.err.Error() }
func (e *delayed) Unwrap() []error { return []error{e.err, e.wait} }

// try is one attempt.
func (d Download) try(ctx context.Context, address string, take func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The clock runs until something comes, and begins anew then.
	clock := time.AfterFunc(d.Stall, func() { cancel(errStalled) })
	defer clock.Stop()
	stalled := func(err error, after string) error {
		if err != nil && errors.Is(context.Cause(ctx), errStalled) {
			return fmt.Errorf("%w for %s after %s", errStalled, d.Stall, after)
		}
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		var wrapped *url.Error // it says the URL once more, with all that is in it
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return err
	}
	request.Header.Set("User-Agent", "parity")
	client := http.Client{Transport: transport(), CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("%w, to %s", errRedirects, Redacted(r.URL.String()))
		}
		return nil
	}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		var wrapped *url.Error // it says GET and the URL once more
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		if err = stalled(err, "the request"); errors.Is(err, errRedirects) {
			return err
		}
		return &networkError{err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		seen := &statusError{status: response.Status, code: response.StatusCode}
		if err = seen; seen.passing() {
			err = &networkError{seen}
		}
		if seconds, convErr := strconv.Atoi(response.Header.Get("Retry-After")); convErr == nil && seconds >= 0 {
			wait := min(time.Duration(seconds)*time.Second, maxWait)
			return &delayed{err: err, wait: &backoff.RetryAfterError{Duration: wait}}
		}
		return err
	}
	body := &watched{body: response.Body, progress: func() { clock.Reset(d.Stall) }}
	err = take(io.LimitReader(body, maxBytes+1))
	switch {
	case body.read > maxBytes:
		return fmt.Errorf("expected at most %d bytes, seen more", maxBytes)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &networkError{fmt.Errorf("the answer ended early: expected %d bytes, seen %d", response.ContentLength, body.read)}
	}
	if err = stalled(err, fmt.Sprintf("%d bytes", body.read)); err != nil && body.broke {
		err = &networkError{err}
	}
	return err
}

func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // the checksum is that of the bytes at the URL
	return t
}

// watched tells of each read that brought something.
type watched struct {
	body     io.Reader
	read     int64
	broke    bool // a read failed
	progress func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.body.Read(b)
	if n > 0 {
		w.read += int64(n)
		w.progress()
	}
	w.broke = w.broke || err != nil && !errors.Is(err, io.EOF)
	return n, err
}
