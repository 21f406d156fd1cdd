package msbdriver_test

import (
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/msbdriver"
)

func TestParseEnvironment(t *testing.T) {
	plain := msbdriver.Options{MemoryMiB: 512, CPUs: 1}
	with := func(change func(*msbdriver.Options)) msbdriver.Options {
		o := plain
		change(&o)
		return o
	}
	blocked := with(func(o *msbdriver.Options) { o.BlockEgress = true })
	for _, c := range []struct {
		env   string // entries, separated by spaces
		want  msbdriver.Options
		wrong string
	}{
		{env: "PATH=/bin MICROSANDBOX_HOME=/x MICROSANDBOX_MEMORY=", want: plain},
		{env: "MICROSANDBOX_BLOCK_EGRESS=true", want: blocked},
		{env: "MICROSANDBOX_BLOCK_EGRESS=1", want: blocked},
		{env: "MICROSANDBOX_BLOCK_EGRESS=TRUE", want: blocked},
		{env: "MICROSANDBOX_BLOCK_EGRESS=true MICROSANDBOX_BLOCK_EGRESS=0", want: plain}, // the later one counts
		{env: "MICROSANDBOX_BLOCK_EGRESS=False MICROSANDBOX_EPHEMERAL=0", want: plain},
		{env: "MICROSANDBOX_MAX_MEMORY=2048 MICROSANDBOX_MAX_CPUS=4 MICROSANDBOX_STORAGE=8 INACTIVITY_TIMEOUT=1h30m",
			want: with(func(o *msbdriver.Options) {
				o.MaxMemoryMiB, o.MaxCPUs, o.StorageGiB, o.InactivityTimeout = 2048, 4, 8, 90*time.Minute
			})},
		{env: "INACTIVITY_TIMEOUT=0", want: plain},

		{env: "MICROSANDBOX_BLOCK_EGRESS=yes", wrong: `option MICROSANDBOX_BLOCK_EGRESS: expected true or false, or 1 or 0, seen "yes"`},
		{env: "MICROSANDBOX_EPHEMERAL=1", wrong: "option MICROSANDBOX_EPHEMERAL: "},
		{env: "MICROSANDBOX_MEMORY=2GB", wrong: `option MICROSANDBOX_MEMORY: expected a whole number from 64 to 1048576, seen "2GB"`},
		{env: "MICROSANDBOX_MEMORY=1e3", wrong: "option MICROSANDBOX_MEMORY"},
		{env: "MICROSANDBOX_CPUS=-1", wrong: "option MICROSANDBOX_CPUS"},
		{env: "MICROSANDBOX_STORAGE=0", wrong: "option MICROSANDBOX_STORAGE"},
		{env: "MICROSANDBOX_MAX_MEMORY=256", wrong: "option MICROSANDBOX_MAX_MEMORY: expected at least the memory, 512 MiB"},
		{env: "MICROSANDBOX_CPUS=3 MICROSANDBOX_MAX_CPUS=2", wrong: "option MICROSANDBOX_MAX_CPUS: expected at least the CPUs, 3"},
		{env: "INACTIVITY_TIMEOUT=90", wrong: `option INACTIVITY_TIMEOUT: expected a duration in whole seconds such as 90s or 1h30m, seen "90"`},
		{env: "INACTIVITY_TIMEOUT=-5m", wrong: "option INACTIVITY_TIMEOUT"},
		{env: "INACTIVITY_TIMEOUT=10ms", wrong: "option INACTIVITY_TIMEOUT"},
	} {
		got, err := msbdriver.ParseEnvironment(strings.Fields(c.env))
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: got %v, want %q", c.env, err, c.wrong)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.env, got, err, c.want)
		}
	}
}

// What an option asks for reaches msb.
func TestOptionsReachMSB(t *testing.T) {
	o, err := msbdriver.ParseOptions(map[string]string{
		"MICROSANDBOX_MAX_MEMORY": "2048", "MICROSANDBOX_MAX_CPUS": "4", "MICROSANDBOX_STORAGE": "8", "INACTIVITY_TIMEOUT": "1h30m",
	})
	if err != nil {
		t.Fatal(err)
	}
	d, home := standIn(t, o)
	if _, err := d.Run(t.Context(), "w", runOptions(home)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--max-cpus 4", "--max-memory 2048M", "--root-disk 8G", "--idle-timeout 5400s"} {
		if log := asked(t, home); !strings.Contains(log, want) {
			t.Errorf("no %q in what msb was asked for:\n%s", want, log)
		}
	}
}
