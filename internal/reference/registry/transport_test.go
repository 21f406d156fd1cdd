package registry

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestAServerThatSaysNothingMore(t *testing.T) {
	for _, path := range []string{"/no-answer", "/half"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/half" {
				w.Header().Set("Content-Length", "10")
				_, _ = io.WriteString(w, "half")
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}))
		defer server.Close()
		client := http.Client{Transport: stallGuard{http.DefaultTransport, 50 * time.Millisecond}}
		answer, err := client.Get(server.URL + path)
		if err == nil {
			_, err = io.ReadAll(answer.Body)
			answer.Body.Close()
		}
		if !errors.Is(err, errStalled) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// It is the silence that counts, and not how long an answer takes.
func TestAServerThatIsSlow(t *testing.T) {
	const patience, pieces = time.Second, 10
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range pieces {
			time.Sleep(patience / pieces * 3 / 2) // all of it takes longer than the patience
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
		}
	}))
	defer server.Close()
	client := http.Client{Transport: stallGuard{http.DefaultTransport, patience}}
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if all, err := io.ReadAll(answer.Body); err != nil || len(all) != pieces {
		t.Errorf("got %q, %v", all, err)
	}
}
