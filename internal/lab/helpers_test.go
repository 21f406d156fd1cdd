package lab

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// watch is a writer that tells when a word was written to it.
type watch struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	word string
	seen chan struct{}
	once sync.Once
}

func newWatch(word string) *watch { return &watch{word: word, seen: make(chan struct{})} }

func (w *watch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if strings.Contains(w.buf.String(), w.word) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(b), nil
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func (w *watch) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.seen:
	case <-time.After(4 * time.Minute):
		t.Fatalf("%q was not written; %q was", w.word, w.String())
	}
}

func tarOf(t *testing.T, name string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}
