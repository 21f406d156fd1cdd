//go:build microvm

package msb_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
)

// These tests run the real msb and boot real microVMs. They are built with the tag microvm and run in a lab; scripts/test does so.

func client(t *testing.T) *msb.Client {
	t.Helper()
	scratch := os.Getenv(lab.EnvScratch)
	if scratch == "" {
		t.Fatal("this test needs a lab: run it with `parity lab -- ...`, as scripts/test does")
	}
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp(scratch, "m")
	if err != nil {
		t.Fatal(err)
	}
	c := &msb.Client{Path: filepath.Join(cache, "microsandbox", msb.PinnedRelease().Version, "bin", "msb"), Home: home}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		list, err := c.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, box := range list {
			if err := c.Remove(ctx, box.Name); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return c
}

func loaded(t *testing.T) (*msb.Client, string) {
	t.Helper()
	c := client(t)
	l, err := link.New(link.Options{Name: "msbtest", Address: netip.MustParsePrefix("203.0.113.20/24")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	img, err := images.Build(images.Spec{Nonce: "msb-test", Env: map[string]string{"FROM_IMAGE": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	const ref = "parity.test/msb:1"
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	return c, ref
}

func TestMicroVMVersionIsThePinnedOne(t *testing.T) {
	if v, err := client(t).Version(t.Context()); err != nil || v != msb.PinnedRelease().Version {
		t.Errorf("the version is %q, %v", v, err)
	}
}

func TestMicroVMLife(t *testing.T) {
	c, ref := loaded(t)
	ctx := t.Context()
	var operations []string
	c.Observe = func(op string, elapsed time.Duration, _ error) {
		if elapsed > 0 {
			operations = append(operations, op)
		}
	}
	list, err := c.Images(ctx)
	if err != nil || len(list) != 1 || list[0].Reference != ref || list[0].Architecture != "amd64" {
		t.Fatalf("the image store has %+v, %v", list, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("copied"), 0o755); err != nil {
		t.Fatal(err)
	}
	create := msb.CreateOptions{
		Name: "life", Image: ref, CPUs: 1, MemoryMiB: 256, Env: map[string]string{"WORD": "a b"}, Labels: map[string]string{"parity": "1"},
		DenyEgress: true, Copies: []msb.Copy{{Source: file, Target: "/opt/file"}},
	}
	if err := c.Create(ctx, create); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, create); err == nil {
		t.Error("a second create of one name succeeded")
	}

	box, err := c.Inspect(ctx, "life")
	if err != nil {
		t.Fatal(err)
	}
	if box.Status != msb.StatusRunning || box.CreatedAt.IsZero() || box.ActiveConfig == nil {
		t.Errorf("inspect says %s", box.Raw)
	}
	if p := box.ActiveConfig.Network.Policy; p == nil || p.DefaultEgress != "deny" || !*box.ActiveConfig.Network.Enabled {
		t.Errorf("the active policy is %+v", p)
	}
	listed, err := c.List(ctx)
	if err != nil || len(listed) != 1 || listed[0] != (msb.Listed{Name: "life", Status: msb.StatusRunning}) {
		t.Errorf("list says %+v, %v", listed, err)
	}

	res, err := c.Exec(ctx, "life", []string{"/bin/sh", "-c", "echo $WORD $FROM_IMAGE; cat /opt/file; echo >&2 err; exit 23"}, nil)
	if code, ok := proc.ExitCode(err); !ok || code != 23 || string(res.Stdout) != "a b 1\ncopied" || string(res.Stderr) != "err\n" {
		t.Errorf("exec gives %d %v, %q, %q", code, err, res.Stdout, res.Stderr)
	}
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	if res, err = c.Exec(ctx, "life", []string{"/bin/cat"}, bytes.NewReader(sent)); err != nil || !bytes.Equal(res.Stdout, sent) {
		t.Errorf("1 MiB of stdin came back as %d bytes, %v", len(res.Stdout), err)
	}
	if err := os.WriteFile(file, sent, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyIn(ctx, "life", file, "/opt/second"); err != nil {
		t.Fatal(err)
	}
	if res, err = c.Exec(ctx, "life", []string{"/bin/cat", "/opt/second"}, nil); err != nil || !bytes.Equal(res.Stdout, sent) {
		t.Errorf("the copied file has %d bytes, %v", len(res.Stdout), err)
	}

	if err := c.Stop(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	stopped, err := c.Inspect(ctx, "life")
	if err != nil || stopped.Status != msb.StatusStopped || stopped.ActiveConfig != nil || !stopped.CreatedAt.Equal(box.CreatedAt) {
		t.Errorf("after stop, inspect says %s, %v", stopped.Raw, err)
	}
	if err := c.Start(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(ctx, "life"); err == nil {
		t.Error("starting a running sandbox succeeded")
	}
	if err := c.Remove(ctx, "life"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Inspect(ctx, "life"); !errors.Is(err, msb.ErrNotFound) {
		t.Errorf("of a removed sandbox inspect says %v", err)
	}
	if err := c.Remove(ctx, "life"); !errors.Is(err, msb.ErrNotFound) {
		t.Errorf("removing a removed sandbox gives %v", err)
	}
	if got := strings.Join(operations[:3], ","); got != "image ls,create,create" {
		t.Errorf("the observed operations begin with %s", got)
	}
}

// Bytes must pass both ways as they come: a conversation, not a batch. SSH over exec stands on it.
func TestMicroVMExecCarriesAConversation(t *testing.T) {
	c, ref := loaded(t)
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "talk", Image: ref, CPUs: 1, MemoryMiB: 256}); err != nil {
		t.Fatal(err)
	}
	cmd := c.ExecCmd("talk", []string{"/bin/sh", "-c", "while read -r line; do echo \"got $line\"; done"})
	in, out := io.Pipe()
	answers, stdout := io.Pipe()
	cmd.Stdin, cmd.Stdout = in, stdout
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := proc.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { answers.CloseWithError(ctx.Err()) })
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(out, word+"\n"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len("got \n")+len(word))
		if _, err := io.ReadFull(answers, buf); err != nil || string(buf) != "got "+word+"\n" {
			t.Fatalf("the answer to %q is %q, %v", word, buf, err)
		}
	}
	out.Close()
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func TestMicroVMErrors(t *testing.T) {
	c := client(t)
	ctx := t.Context()
	err := c.Start(ctx, "nobody")
	if err == nil || !strings.Contains(err.Error(), "start") || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("starting what does not exist gives %v", err)
	}
	err = c.Load(ctx, "/nonexistent.tar")
	if err == nil || !strings.Contains(err.Error(), "/nonexistent.tar") || !strings.Contains(err.Error(), "exited with code") {
		t.Errorf("loading what does not exist gives %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := c.List(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at its deadline a command gives %v", err)
	}
	broken := msb.Client{Path: "/bin/echo", Home: c.Home} // prints its arguments: not JSON
	var syntax *json.SyntaxError
	if _, err := broken.Inspect(ctx, "x"); !errors.As(err, &syntax) || !strings.Contains(err.Error(), "msb inspect") {
		t.Errorf("text where JSON is due gives %v", err)
	}
}
