package binaries_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dagger/parity/internal/reference/binaries"
)

const content = "#!/bin/sh\necho the program\n"

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// server serves with a handler and counts its requests.
type server struct {
	*httptest.Server
	requests atomic.Int32
}

func serve(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, n int)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, int(s.requests.Add(1))) }))
	t.Cleanup(s.Close)
	return s
}

func ok(w http.ResponseWriter, _ *http.Request, _ int) { fmt.Fprint(w, content) }

// bench is a store with a program at a URL.
type bench struct {
	*testing.T
	binaries.Store
	binaries.Binary
}

func newBench(t *testing.T, url string) *bench {
	t.Helper()
	dir := t.TempDir()
	return &bench{T: t,
		Store: binaries.Store{Dir: filepath.Join(dir, "agent", "binaries"), Cache: filepath.Join(dir, "cache"),
			Download: binaries.Download{Stall: 300 * time.Millisecond, Wait: time.Millisecond}},
		Binary: binaries.Binary{Key: "driver", Name: "runtime", URL: url, SHA256: sum(content)}}
}

func (b *bench) install() (string, error) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	return b.Store.Install(ctx, b.Binary)
}

func (b *bench) installed() string { return filepath.Join(b.Dir, b.Key, b.Name) }

func (b *bench) cached() string { return filepath.Join(b.Cache, sum(b.URL)) }

// nothing checks that a failed installation left nothing that could be taken for the program.
func (b *bench) nothing() {
	b.Helper()
	for _, dir := range []string{filepath.Join(b.Dir, b.Key), b.Cache} {
		left, _ := os.ReadDir(dir)
		for _, f := range left {
			b.Errorf("%s was left in %s", f.Name(), dir)
		}
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func TestInstallDownloadsOnce(t *testing.T) {
	s := serve(t, ok)
	b := newBench(t, s.URL+"/runtime")
	path, err := b.install()
	if err != nil || path != b.installed() {
		t.Fatalf("got %q, %v", path, err)
	}
	before, err := os.Stat(path)
	b.must(err)
	text, _ := os.ReadFile(path)
	if string(text) != content || before.Mode().Perm() != 0o755 {
		t.Errorf("installed %q with the mode %s", text, before.Mode())
	}
	if info, err := os.Stat(b.Cache); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the cache is not private: %v, %v", info, err)
	}
	// Again, without a request, and the file is the one that it was.
	_, err = b.install()
	b.must(err)
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || s.requests.Load() != 1 {
		t.Errorf("a second installation made a file or a request: %d requests, %v", s.requests.Load(), err)
	}
	// Without the cache, what is installed is enough; without what is installed, the cache is.
	b.must(os.RemoveAll(b.Cache))
	_, err = b.install()
	b.must(err)
	if s.requests.Load() != 1 {
		t.Errorf("%d requests were made", s.requests.Load())
	}
	b.must(os.RemoveAll(b.Dir))
	_, err = b.install()
	b.must(err)
	b.must(os.RemoveAll(b.Dir))
	_, err = b.install()
	b.must(err)
	if s.requests.Load() != 2 {
		t.Errorf("%d requests were made; the cache was not used", s.requests.Load())
	}
}

func TestWhatIsThereIsCheckedBeforeEachUse(t *testing.T) {
	for name, spoil := range map[string]func(b *bench) error{
		"the installed file changed": func(b *bench) error { return os.WriteFile(b.installed(), []byte("x"), 0o755) },
		"it cannot be executed":      func(b *bench) error { return os.Chmod(b.installed(), 0o644) },
		"it is gone":                 func(b *bench) error { return os.Remove(b.installed()) },
		"it is a link": func(b *bench) error {
			return errors.Join(os.Remove(b.installed()), os.Symlink("/bin/true", b.installed()))
		},
		"and the cache changed": func(b *bench) error {
			return errors.Join(os.Remove(b.installed()), os.WriteFile(b.cached(), []byte("x"), 0o600))
		},
		"and the cache is a link": func(b *bench) error {
			other := filepath.Join(b.TempDir(), "other")
			return errors.Join(os.Remove(b.installed()), os.Rename(b.cached(), other), os.Symlink(other, b.cached()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, ok)
			b := newBench(t, s.URL+"/runtime")
			path, err := b.install()
			b.must(err)
			b.must(spoil(b))
			if _, err := b.Resolve(b.Binary); err == nil {
				t.Error("it passes for the program")
			}
			_, err = b.install()
			b.must(err)
			if text, _ := os.ReadFile(path); string(text) != content {
				t.Errorf("installed %q", text)
			}
			want := int32(1)
			if strings.Contains(name, "cache") {
				want = 2
			}
			if s.requests.Load() != want {
				t.Errorf("%d requests were made, want %d", s.requests.Load(), want)
			}
		})
	}
}

func TestResolveSaysWhatIsWrong(t *testing.T) {
	outside := t.TempDir()
	for name, c := range map[string]struct {
		spoil func(b *bench) error
		want  string
	}{
		"changed": {func(b *bench) error { return os.WriteFile(b.installed(), []byte("x"), 0o755) },
			"expected SHA-256 " + sum(content) + ", seen " + sum("x")},
		"not executable": {func(b *bench) error { return os.Chmod(b.installed(), 0o600) }, "seen the mode -rw-------"},
		"missing":        {func(b *bench) error { return os.Remove(b.installed()) }, "no such file"},
		"a link": {func(b *bench) error {
			return errors.Join(os.Remove(b.installed()), os.Symlink("/bin/sh", b.installed()))
		}, "seen a symbolic link"},
		"a folder": {func(b *bench) error { return errors.Join(os.Remove(b.installed()), os.Mkdir(b.installed(), 0o755)) }, "seen a folder"},
		"its folder is a link": {func(b *bench) error {
			dir := filepath.Dir(b.installed())
			return errors.Join(os.Rename(dir, filepath.Join(outside, "moved")), os.Symlink(filepath.Join(outside, "moved"), dir))
		}, "expected a folder at "},
		"a relative folder": {func(b *bench) error { b.Dir = "agent"; return nil }, "expected an absolute path"},
	} {
		s := serve(t, ok)
		b := newBench(t, s.URL+"/runtime")
		_, err := b.install()
		b.must(err)
		b.must(c.spoil(b))
		if path, err := b.Resolve(b.Binary); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v, want %q", name, path, err, c.want)
		}
		if s.requests.Load() != 1 {
			t.Errorf("%s: resolving made a request", name)
		}
	}
}

// Where the folder leads out, nothing is written there.
func TestInstallDoesNotFollowALinkOut(t *testing.T) {
	outside := t.TempDir()
	b := newBench(t, serve(t, ok).URL+"/runtime")
	b.must(os.MkdirAll(b.Dir, 0o700))
	b.must(os.Symlink(outside, filepath.Join(b.Dir, b.Key)))
	_, err := b.install()
	if err == nil || !strings.Contains(err.Error(), "expected a folder at") {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%s was written outside", left[0].Name())
	}
}

func TestAChecksumThatIsNotRight(t *testing.T) {
	s := serve(t, ok)
	b := newBench(t, s.URL+"/runtime")
	b.SHA256 = strings.Repeat("0", 64)
	_, err := b.install()
	var wrong *binaries.ChecksumError
	if !errors.As(err, &wrong) || wrong.Seen != sum(content) ||
		!strings.Contains(err.Error(), "checksum of "+b.URL+": expected SHA-256 "+b.SHA256+", seen "+sum(content)) {
		t.Errorf("got %v", err)
	}
	if s.requests.Load() != 1 {
		t.Errorf("%d requests were made: it is no fault that goes away", s.requests.Load())
	}
	b.nothing()
}

func TestWhatIsTriedAgain(t *testing.T) {
	fails := func(code int, times int) func(http.ResponseWriter, *http.Request, int) {
		return func(w http.ResponseWriter, r *http.Request, n int) {
			if n <= times {
				http.Error(w, "not now", code)
				return
			}
			ok(w, r, n)
		}
	}
	stalls := func(before string, times int) func(http.ResponseWriter, *http.Request, int) {
		return func(w http.ResponseWriter, r *http.Request, n int) {
			if n > times {
				ok(w, r, n)
				return
			}
			if before != "" {
				w.Header().Set("Content-Length", fmt.Sprint(len(content)))
				fmt.Fprint(w, before)
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}
	}
	for name, c := range map[string]struct {
		handle   func(http.ResponseWriter, *http.Request, int)
		requests int32
		want     string // of the error; empty: it heals
	}{
		"500 heals":         {fails(500, 2), 3, ""},
		"503 heals":         {fails(503, 1), 2, ""},
		"408 heals":         {fails(408, 1), 2, ""},
		"429 heals":         {fails(429, 3), 4, ""},
		"no answer heals":   {stalls("", 1), 2, ""},
		"half a body heals": {stalls(content[:9], 2), 3, ""},
		"500 stays":         {fails(500, 99), 4, "expected the answer 200, seen 500 Internal Server Error (after 4 attempts)"},
		"no answer stays":   {stalls("", 99), 4, "nothing came for 300ms after the request (after 4 attempts)"},
		"half a body stays": {stalls(content[:9], 99), 4, "nothing came for 300ms after 9 bytes (after 4 attempts)"},
		"404":               {fails(404, 99), 1, "expected the answer 200, seen 404 Not Found"},
		"403":               {fails(403, 99), 1, "seen 403"},
		"204":               {fails(204, 99), 1, "seen 204"},
		"401":               {fails(401, 99), 1, "seen 401"},
		"a redirect loop": {func(w http.ResponseWriter, r *http.Request, n int) {
			http.Redirect(w, r, fmt.Sprint("/", n), http.StatusFound)
		}, 11, "expected at most 10 redirects"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				http.Redirect(w, r, "/other", http.StatusFound)
			} else {
				ok(w, r, n)
			}
		}, 2, ""},
		"a redirect to nowhere": {func(w http.ResponseWriter, r *http.Request, n int) { http.Redirect(w, r, "ftp://x/", http.StatusFound) }, 1, "unsupported protocol scheme"},
		"a truncated download": {func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			fmt.Fprint(w, content[:9])
		}, 1, fmt.Sprintf("the answer ended early: expected %d bytes, seen 9", len(content))},
		"an empty answer":          {func(http.ResponseWriter, *http.Request, int) {}, 1, "seen " + sum("")},
		"a connection that breaks": {func(w http.ResponseWriter, _ *http.Request, _ int) { panic(http.ErrAbortHandler) }, 1, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.handle)
			s.Config.ErrorLog = nil
			b := newBench(t, s.URL+"/runtime")
			_, err := b.install()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), "download runtime: GET "+s.URL+"/runtime: ") {
				t.Errorf("the error does not say what was asked for: %v", err)
			}
			if n := s.requests.Load(); n != c.requests {
				t.Errorf("%d requests were made, want %d", n, c.requests)
			}
			if err != nil {
				b.nothing()
			}
		})
	}
}

// A server that is slow, but not silent, is waited for.
func TestASlowDownloadIsNoStall(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		for _, b := range []byte(content) {
			_, _ = w.Write([]byte{b})
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond) // longer in all than a stall is
		}
	})
	b := newBench(t, s.URL+"/runtime")
	_, err := b.install()
	if err != nil || s.requests.Load() != 1 {
		t.Errorf("%v after %d requests", err, s.requests.Load())
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	b := newBench(t, "http://user:s3cret@"+l.Addr().String()+"/runtime")
	_, err = b.install()
	if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "attempts") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestADownloadIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		cancel()
		<-r.Context().Done()
	})
	b := newBench(t, s.URL+"/runtime")
	b.Download.Stall = time.Minute
	if _, err := b.Store.Install(ctx, b.Binary); !errors.Is(err, context.Canceled) || s.requests.Load() != 1 {
		t.Errorf("got %v after %d requests", err, s.requests.Load())
	}
	b.nothing()
}

// Two at once, of two workspaces: each gets the whole file.
func TestTwoAtOnce(t *testing.T) {
	s := serve(t, ok)
	one, two := newBench(t, s.URL+"/runtime"), newBench(t, s.URL+"/runtime")
	two.Cache = one.Cache
	done := make(chan error, 2)
	for _, b := range []*bench{one, two} {
		go func() {
			_, err := b.install()
			done <- err
		}()
	}
	one.must(errors.Join(<-done, <-done))
}

func TestACacheThatOthersCanWriteToIsNotUsed(t *testing.T) {
	b := newBench(t, serve(t, ok).URL+"/runtime")
	b.must(os.MkdirAll(b.Cache, 0o700))
	b.must(os.Chmod(b.Cache, 0o777))
	if _, err := b.install(); err == nil || !strings.Contains(err.Error(), "only its owner can write to") {
		t.Errorf("got %v", err)
	}
}
