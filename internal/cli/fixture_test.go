package cli_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/fixtures/httpfixture"
	"dagger/parity/fixtures/registry"
)

// served is a fixture that runs as a program.
type served struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// serve starts `parity fixture` and gives the lines that it prints once it serves.
func serve(t *testing.T, lines int, args ...string) (*served, []string) {
	t.Helper()
	s := &served{cmd: exec.Command(filepath.Join(programs, "parity"), append([]string{"fixture"}, args...)...)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdout = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	var printed []string
	for range lines {
		line, err := s.stdout.ReadString('\n')
		if err != nil {
			_ = s.cmd.Wait()
			t.Fatalf("expected %d lines, got %q, %v: %s", lines, printed, err, s.stderr.String())
		}
		printed = append(printed, strings.TrimSuffix(line, "\n"))
	}
	return s, printed
}

// end sends a signal, and expects exit code 0 and nothing more to be printed.
func (s *served) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(s.stdout)
	if err := s.cmd.Wait(); err != nil || len(rest) > 0 || s.stderr.Len() > 0 {
		t.Errorf("after %s: %v, stdout %q, stderr %q", signal, err, rest, s.stderr.String())
	}
}

func receipts(t *testing.T, client *http.Client, base string) (r httpfixture.Receipts) {
	t.Helper()
	resp, err := client.Get(base + "/parity/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return r
}

func TestFixtureRegistry(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ca, password := filepath.Join(tmp, "ca.pem"), filepath.Join(tmp, "password")
	if err := os.WriteFile(password, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s, lines := serve(t, 1, "registry", "--listen", "0.0.0.0:0", "--tls", "--ca-out", ca, "--user", "parity", "--password-file", password)
		if addr, err := netip.ParseAddrPort(lines[0]); err != nil || addr.Addr().IsUnspecified() {
			t.Fatalf("expected an address that others reach, got %q", lines[0])
		}
		pem, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
		img, err := random.Image(1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(lines[0] + "/app:a")
		if err != nil {
			t.Fatal(err)
		}
		options := []remote.Option{remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: "parity", Password: "open sesame"})}
		if err := remote.Write(ref, img, options...); err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Image(ref, options...); err != nil {
			t.Error(err)
		}
		got := registry.ReadsOf(receipts(t, &http.Client{Transport: transport}, "https://parity:open%20sesame@"+lines[0]), "app")
		if got.Manifests != 1 || got.Blobs != 0 || got.Asked < 2 {
			t.Errorf("expected one read of a manifest, got %+v", got)
		}
		s.end(t, signal) // the transport's connection is open still
		transport.CloseIdleConnections()
		if left, err := filepath.Glob(filepath.Join(tmp, "parity-registry-*")); err != nil || len(left) != 0 {
			t.Errorf("%q is left, %v", left, err)
		}
	}
}

func TestFixtureArtifacts(t *testing.T) {
	dir := t.TempDir()
	agent, runtime := filepath.Join(dir, "devsy-linux-amd64"), filepath.Join(dir, "runtime")
	for _, file := range []string{agent, runtime} {
		if err := os.WriteFile(file, []byte(filepath.Base(file)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s, lines := serve(t, 2, "artifacts", "--agent", agent, "--runtime", runtime, "--runtime-listen", "[::]:0", "--advertise", "127.0.0.1")
	agentURL, isAgent := strings.CutPrefix(lines[0], "agent   http://127.0.0.1:")
	runtimeURL, isRuntime := strings.CutPrefix(lines[1], "runtime http://127.0.0.1:")
	if !isAgent || !isRuntime || !strings.HasSuffix(agentURL, "/devsy-linux-amd64") || !strings.HasSuffix(runtimeURL, "/runtime") {
		t.Fatalf("%q", lines)
	}
	agentURL, runtimeURL = "http://127.0.0.1:"+agentURL, "http://127.0.0.1:"+runtimeURL
	base := strings.TrimSuffix(runtimeURL, "/runtime")
	get := func(url string) int {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for _, test := range []struct {
		path           string
		agent, runtime int
	}{{"/parity/offline", 200, 404}, {"/parity/online", 200, 200}} {
		resp, err := http.Post(base+test.path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if a, r := get(agentURL), get(runtimeURL); a != test.agent || r != test.runtime {
			t.Errorf("after %s the agent's answers %d and the runtime's %d, expected %d and %d", test.path, a, r, test.agent, test.runtime)
		}
	}
	if got := receipts(t, http.DefaultClient, base); got.Total != 2 || got.Counts[0] != (httpfixture.Count{Method: "GET", Path: "/runtime", Requests: 2, Served: 1}) {
		t.Errorf("%+v", got)
	}
	s.end(t, syscall.SIGTERM)
}

func TestFixtureUsage(t *testing.T) {
	dir := t.TempDir()
	empty, file := filepath.Join(dir, "empty"), filepath.Join(dir, "file")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"fixture registr", 2, `unknown command "registr"; did you mean registry?`},
		{"fixture registry x", 2, "unknown command"},
		{"fixture registry --listen 5000", 2, `--listen "5000": expected an IP address and a port`},
		{"fixture registry --listen localhost:5000", 2, `--listen "localhost:5000": expected an IP address and a port`},
		{"fixture registry --listen=", 2, `--listen "": the value is empty`},
		{"fixture registry --tls", 2, "--tls and --ca-out go together"},
		{"fixture registry --ca-out x", 2, "--tls and --ca-out go together"},
		{"fixture registry --user x", 2, "--user and --password-file go together"},
		{"fixture registry --user x --password-file /nonexistent", 2, "--password-file: open /nonexistent"},
		{"fixture registry --user x --password-file " + empty, 2, "a login needs a password"},
		{"fixture registry --user a:b --password-file " + file, 2, "a login needs a user, without a colon"},
		{"fixture registry --dir " + dir, 3, dir + " is not empty"},
		{"fixture registry --listen " + busy.Addr().String(), 3, "address already in use; give another address"},
		{"fixture registry --tls --ca-out /nonexistent/ca.pem", 3, "--ca-out: "},
		{"fixture artifacts", 2, "--agent and --runtime: both are needed"},
		{"fixture artifacts --agent /nonexistent --runtime " + file, 2, "--agent: open /nonexistent"},
		{"fixture artifacts --agent " + file + " --runtime " + file + " --advertise 0.0.0.0", 2, "no wildcard"},
		{"fixture artifacts --agent " + file + " --runtime " + file + " --agent-listen x", 2, `--agent-listen "x"`},
		{"fixture artifacts --agent " + file + " --runtime " + file + " --runtime-listen " + busy.Addr().String(), 3, "the runtime's: artifact server: "},
	} {
		res := parity(t, nil, strings.Fields(test.args)...)
		if res.code != test.code || !strings.Contains(res.stderr, test.want) || res.stdout != "" {
			t.Errorf("parity %s: code %d, stdout %q, stderr %q; want code %d and %q", test.args, res.code, res.stdout, res.stderr, test.code, test.want)
		}
	}
	if res := parity(t, nil, "fixture"); res.code != 0 || !strings.Contains(res.stdout, "registry") || !strings.Contains(res.stdout, "artifacts") {
		t.Errorf("the help: code %d, %q", res.code, res.stdout)
	}
}

// A client that is in no hurry does not keep it.
func TestFixtureRegistryEndsWithinItsDeadline(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	s, lines := serve(t, 1, "registry", "--dir", dir)
	conn, err := net.Dial("tcp", lines[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PUT /v2/app/manifests/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); receipts(t, http.DefaultClient, "http://"+lines[0]).Total == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request did not arrive")
		}
	}
	s.end(t, syscall.SIGTERM) // with a request under way
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}
