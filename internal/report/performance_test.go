package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// measured is the sample with measurements of its egress cases, of which one did not come to its end.
func measured() Report {
	r := raw()
	r.Cases[0].Performance = &Performance{FreshUp: 83 * time.Second, ReusedUp: 5500 * time.Millisecond,
		WarmProbes: []time.Duration{40 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond}}
	r.Cases[2].Performance = &Performance{FreshUp: time.Second}
	return Conclude(r)
}

func TestMedianWarmProbe(t *testing.T) {
	for want, probes := range map[time.Duration][]time.Duration{0: nil, 7: {7}, 15: {30, 10, 20, 1}, 20: {30, 20, 10}} {
		before := append([]time.Duration{}, probes...)
		if got := (Performance{WarmProbes: probes}).MedianWarmProbe(); got != want || len(probes) > 0 && !reflect.DeepEqual(probes, before) {
			t.Errorf("the median of %v is %v, want %v; afterwards they are %v", before, got, want, probes)
		}
	}
}

func TestPerformanceFile(t *testing.T) {
	dir := t.TempDir()
	want := measured()
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, PerformanceFile))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	cases := []any{
		map[string]any{"id": "egress/builtin/public", "verdict": "inconclusive", "freshUpNanoseconds": 1e9},
		map[string]any{"id": "egress/builtin/deny", "verdict": "fail", "freshUpNanoseconds": 83e9, "reusedUpNanoseconds": 5.5e9,
			"warmProbesNanoseconds": []any{40e6, 10e6, 20e6}, "medianWarmProbeNanoseconds": 20e6},
	}
	if !reflect.DeepEqual(got["cases"], cases) {
		t.Errorf("the cases are\n%v, want\n%v", got["cases"], cases)
	}
	if got["schema"] != "parity.performance/v1" || got["head"].(map[string]any)["kernel"] != "6.1.0 #1 SMP" {
		t.Errorf("the schema is %v, the head %v", got["schema"], got["head"])
	}
	if note, _ := got["note"].(string); !strings.Contains(note, "single measurement") || !strings.Contains(note, "no speed-up") {
		t.Errorf("the note does not say what the figures are: %q", note)
	}
	// Nothing of it is lost in report.json.
	read, err := Read(dir)
	if err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read back:\n%+v, %v\nwant:\n%+v", read, err, want)
	}
}

func TestNoPerformanceFileOfAnOlderRunRemains(t *testing.T) {
	for name, next := range map[string]func(dir string) error{
		"a run that measures nothing": func(dir string) error { return Write(dir, sample()) },
		"a run that dies":             Prepare,
	} {
		dir := t.TempDir()
		if err := errors.Join(Write(dir, measured()), next(dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, PerformanceFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the older run's file is there (%v)", name, err)
		}
	}
}

func TestPerformanceOfAStandInIsNamedOne(t *testing.T) {
	r := measured()
	r.Head.MicroSandbox.StandIn = true
	if p := performanceOf(Conclude(r)); !strings.HasPrefix(p.Warning, "STAND-IN: ") {
		t.Errorf("the warning is %q", p.Warning)
	}
}

func TestSummarySaysWhatWasMeasured(t *testing.T) {
	var b bytes.Buffer
	writeSummary(&b, measured())
	const want = "\nMeasured once on this machine, with no claim of a speed-up (performance.json): egress/builtin/public: fresh up 1.0s; " +
		"egress/builtin/deny: fresh up 1m23s, reused up 5.5s, median of 3 warm probes 20ms\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("the summary does not hold\n%s\nit is\n%s", want, b.String())
	}
	b.Reset()
	writeSummary(&b, sample())
	if strings.Contains(b.String(), "Measured") {
		t.Errorf("the summary of a run that measured nothing says that it did:\n%s", b.String())
	}
}
