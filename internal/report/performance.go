package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// PerformanceSchema names the format of performance.json. It changes as Schema does.
const PerformanceSchema = "parity.performance/v1"

// Performance is what a case measured. What it did not come to measure is 0, and left out of JSON.
type Performance struct {
	FreshUp    time.Duration   `json:"freshUpNanoseconds,omitempty"`    // an up that brings all that is needed
	ReusedUp   time.Duration   `json:"reusedUpNanoseconds,omitempty"`   // an up that finds it there
	WarmProbes []time.Duration `json:"warmProbesNanoseconds,omitempty"` // commands in the workspace while it runs, in the order in which they ran
}

// MedianWarmProbe is the median of the warm probes, for an even number of them the mean of the middle two; 0 without any.
func (p Performance) MedianWarmProbe() time.Duration {
	n := len(p.WarmProbes)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(p.WarmProbes))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// PerformanceReport is the object in performance.json.
type PerformanceReport struct {
	Schema  string            `json:"schema"`
	Warning string            `json:"warning,omitempty"` // as in Report
	Note    string            `json:"note"`
	Head    Head              `json:"head"`
	Cases   []CasePerformance `json:"cases"` // those that measured something, in catalogue order
}

// CasePerformance is what one case measured.
type CasePerformance struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	Performance
	Median time.Duration `json:"medianWarmProbeNanoseconds,omitempty"`
}

const performanceNote = "Each figure is a single measurement, made once by this run on the machine that the head describes. " +
	"They say what happened there, and claim no speed-up of anything over anything."

// performanceOf gives the measurements of a concluded report; nil when no case has any.
func performanceOf(r Report) *PerformanceReport {
	p := PerformanceReport{Schema: PerformanceSchema, Warning: r.Warning, Note: performanceNote, Head: r.Head}
	for _, c := range r.Cases {
		if c.Performance != nil {
			p.Cases = append(p.Cases, CasePerformance{c.ID, c.Verdict, *c.Performance, c.Performance.MedianWarmProbe()})
		}
	}
	if p.Cases == nil {
		return nil
	}
	return &p
}

// String says it in one line.
func (p Performance) String() string {
	var parts []string
	if p.FreshUp > 0 {
		parts = append(parts, "fresh up "+Elapsed(p.FreshUp))
	}
	if p.ReusedUp > 0 {
		parts = append(parts, "reused up "+Elapsed(p.ReusedUp))
	}
	if n := len(p.WarmProbes); n > 0 {
		parts = append(parts, fmt.Sprintf("median of %s %s", Count(n, "warm probe"), p.MedianWarmProbe().Round(time.Millisecond)))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
