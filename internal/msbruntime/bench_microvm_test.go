//go:build microvm

package msbruntime_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
)

// BenchmarkProtocol makes each call of a driver with the built-in one and with parity-runtime behind the protocol, on real microVMs and in
// turn, with a process of the runtime for each call as the CLI does it. It reports what the protocol adds, and the throughput of a
// stream of 12 MiB both ways. It runs in a lab with PARITY_BIN set: docs/performance.md.
func BenchmarkProtocol(b *testing.B) {
	cache, err := lab.CacheDir()
	if err != nil {
		b.Fatal(err)
	}
	client := msbtest.NewClient(b, msb.PinnedRelease().Path(cache))
	l, err := link.New(link.Options{Name: "protocol", Address: netip.MustParsePrefix("203.0.113.40/24")})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	img, err := images.Build(images.Spec{Nonce: "protocol"})
	if err != nil {
		b.Fatal(err)
	}
	const ref, workspace = "parity.test/protocol:1", "bench"
	archive := filepath.Join(b.TempDir(), "image.tar")
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		b.Fatal(err)
	}
	if err := client.Load(b.Context(), archive); err != nil {
		b.Fatal(err)
	}
	builtin := msbdriver.Driver{MSB: client, Options: msbdriver.Options{CPUs: 1, MemoryMiB: 256}}
	if _, err := builtin.Run(b.Context(), workspace, driver.RunOptions{Image: ref}); err != nil {
		b.Fatal(err)
	}
	external := func(call func(driver.Driver) error) error {
		r, err := runtimeclient.Start(b.Context(), runtimeclient.Command{
			Path: filepath.Join(labtest.Programs(), "parity-runtime"), Args: []string{"serve"},
			Env: append(os.Environ(), "MSB_HOME="+client.Home, "PARITY_MSB="+client.Path),
		})
		if err != nil {
			return err
		}
		defer r.Close()
		return call(r.Driver())
	}
	payload := bytes.Repeat([]byte("parity!\n"), 12<<20/8)
	cat := func(d driver.Driver) error {
		var out bytes.Buffer
		_, err := d.Exec(b.Context(), workspace, []string{"/bin/cat"}, driver.Streams{In: bytes.NewReader(payload), Out: &out})
		if err == nil && !bytes.Equal(out.Bytes(), payload) {
			b.Fatalf("%d of %d bytes came back", out.Len(), len(payload))
		}
		return err
	}
	for _, call := range []struct {
		name string
		do   func(driver.Driver) error
	}{
		{"find", func(d driver.Driver) error { _, _, err := d.Find(b.Context(), workspace); return err }},
		{"exec", func(d driver.Driver) error {
			_, err := d.Exec(b.Context(), workspace, []string{"/bin/true"}, driver.Streams{})
			return err
		}},
		{"12MiB", cat},
		{"stop", func(d driver.Driver) error { return d.Stop(b.Context(), workspace) }},
		{"start", func(d driver.Driver) error { return d.Start(b.Context(), workspace) }},
	} {
		b.Run(call.name, func(b *testing.B) {
			var own, behind time.Duration
			for range b.N {
				for _, turn := range []struct {
					took *time.Duration
					do   func() error
				}{
					{&own, func() error { return call.do(builtin) }},
					{&behind, func() error { return external(call.do) }},
				} {
					prepare(b, builtin, workspace, call.name)
					began := time.Now()
					if err := turn.do(); err != nil {
						b.Fatal(err)
					}
					*turn.took += time.Since(began)
				}
			}
			b.ReportMetric(own.Seconds()/float64(b.N), "builtin-s")
			b.ReportMetric(behind.Seconds()/float64(b.N), "external-s")
			b.ReportMetric(float64(behind)/float64(own), "ratio")
			if call.name == "12MiB" {
				megabytes := float64(len(payload)) * float64(b.N) / 1e6
				b.ReportMetric(megabytes/own.Seconds(), "msb-exec-MB/s")
				b.ReportMetric(megabytes/behind.Seconds(), "protocol-MB/s")
			}
		})
	}
}

// prepare brings the machine into the state that a call is measured in.
func prepare(b *testing.B, d driver.Driver, workspace, call string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	change := d.Start
	if call == "start" {
		change = d.Stop
	}
	if err := change(ctx, workspace); err != nil {
		b.Fatal(err)
	}
}
