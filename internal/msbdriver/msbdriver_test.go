package msbdriver_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/subject"
)

// standIn gives a driver over testdata/msb.sh, and its MSB_HOME.
func standIn(t *testing.T, o msbdriver.Options) (msbdriver.Driver, string) {
	t.Helper()
	script, err := os.ReadFile("testdata/msb.sh")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	path := filepath.Join(home, "msb")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		t.Fatal(err)
	}
	return msbdriver.Driver{MSB: &msb.Client{Path: path, Home: home}, Options: o}, home
}

func runOptions(home string) driver.RunOptions {
	return driver.RunOptions{Image: "image:1", User: "u", Environment: map[string]string{"A": "b c"}, Labels: map[string]string{"l": "v"},
		Files: []driver.File{{Source: filepath.Join(home, "msb"), Target: "/x"}}}
}

// asked gives the commands that the stand-in got.
func asked(t *testing.T, home string) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

func TestMeaning(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, home := standIn(t, msbdriver.Options{MemoryMiB: 256, CPUs: 2, BlockEgress: true})
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	state := func(found, running bool) {
		t.Helper()
		m, f, err := d.Find(ctx, "w")
		if err != nil || f != found || m.Running != running {
			t.Errorf("Find: got %+v, %v, %v; want found %v, running %v", m, f, err, found, running)
		}
	}
	o := runOptions(home)
	run := func(want error) {
		t.Helper()
		m, err := d.Run(ctx, "w", o)
		is("Run", err, want)
		if m.ID != "devsy-w" {
			t.Errorf("Run gave %+v", m)
		}
	}

	state(false, false)
	is("Start of a missing one", d.Start(ctx, "w"), driver.ErrNotFound)
	is("Stop of a missing one", d.Stop(ctx, "w"), driver.ErrNotFound)
	is("Delete of a missing one", d.Delete(ctx, "w"), nil)
	run(nil)
	state(true, true)
	run(driver.ErrExists)
	state(true, true)
	is("Start of a running one", d.Start(ctx, "w"), nil)
	is("Stop", d.Stop(ctx, "w"), nil)
	state(true, false)
	is("Stop of a stopped one", d.Stop(ctx, "w"), nil)
	is("Start", d.Start(ctx, "w"), nil)
	state(true, true)
	is("Delete of a running one", d.Delete(ctx, "w"), nil)
	state(false, false)

	o.Image = "fails-late:1"
	if _, err := d.Run(ctx, "w", o); err == nil || !strings.Contains(err.Error(), "boot failed") {
		t.Errorf("Run that fails late: %v", err)
	}
	state(false, false)

	log := asked(t, home)
	for _, want := range []string{"--cpus 2", "--memory 256M", "--env A=b c", "--label l=v", "--user u", "--net-default-egress deny", ":/x", " image:1\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in what msb was asked for:\n%s", want, log)
		}
	}
}

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        msbdriver.Options
		wrong       string
	}{
		{want: msbdriver.Options{MemoryMiB: 512, CPUs: 1}},
		{name: "MICROSANDBOX_MEMORY", value: "1024", want: msbdriver.Options{MemoryMiB: 1024, CPUs: 1}},
		{name: "MICROSANDBOX_CPUS", value: "2", want: msbdriver.Options{MemoryMiB: 512, CPUs: 2}},
		{name: "MICROSANDBOX_BLOCK_EGRESS", value: "true", want: msbdriver.Options{MemoryMiB: 512, CPUs: 1, BlockEgress: true}},
		{name: "MICROSANDBOX_BLOCK_EGRESS", value: "TRUE", want: msbdriver.Options{MemoryMiB: 512, CPUs: 1}},
		{name: "MICROSANDBOX_BLOCK_EGRESS", value: "1", want: msbdriver.Options{MemoryMiB: 512, CPUs: 1}},
		{name: "MICROSANDBOX_MEMORY", value: "1G", wrong: "MICROSANDBOX_MEMORY: expected a whole number"},
		{name: "MICROSANDBOX_CPUS", value: "0", wrong: "MICROSANDBOX_CPUS: expected a whole number"},
		{name: "MICROSANDBOX_DISK", value: "1", wrong: "unknown option MICROSANDBOX_DISK"},
	} {
		values := map[string]string{}
		if c.name != "" {
			values[c.name] = c.value
		}
		got, err := msbdriver.ParseOptions(values)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s=%s: got %v, want %q", c.name, c.value, err, c.wrong)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s=%s: got %+v, %v; want %+v", c.name, c.value, got, err, c.want)
		}
	}
}

// The driver and the harness each name a machine by the contract's rule.
func TestName(t *testing.T) {
	for _, n := range []int{1, 121, 122, 123, 200} {
		uid := strings.Repeat("u", n)
		if got, want := msbdriver.Name(uid), subject.VMName(uid); got != want || len(got) > 128 {
			t.Errorf("a uid of %d characters: got %q, want %q", n, got, want)
		}
	}
}
