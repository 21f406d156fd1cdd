package report

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// spent is what a run's cases spent on the checks of one name.
type spent struct {
	what  string
	count int
	time  time.Duration
}

// outsideChecks names what is spent outside of all checks.
const outsideChecks = "outside of the checks: homes, clean-ups"

// times returns what the cases spent their time on, the longest first: each name of a check, and what is
// outside of all checks. The sum is that of the cases.
func times(cases []Case) (list []spent, sum time.Duration) {
	outside := spent{what: outsideChecks}
	by := map[string]*spent{}
	for _, c := range cases {
		sum += c.Elapsed
		rest := c.Elapsed
		for _, check := range c.Checks {
			if check.Elapsed == 0 {
				continue // it was not reached
			}
			s := by[check.Name]
			if s == nil {
				s = &spent{what: check.Name}
				by[check.Name] = s
			}
			s.count++
			s.time += check.Elapsed
			rest -= check.Elapsed
		}
		if rest > 0 {
			outside.count++
			outside.time += rest
		}
	}
	for _, s := range by {
		list = append(list, *s)
	}
	if outside.time > 0 {
		list = append(list, outside)
	}
	slices.SortFunc(list, func(a, b spent) int {
		return cmp.Or(cmp.Compare(b.time, a.time), strings.Compare(a.what, b.what))
	})
	return list, sum
}

// otherTimes returns a line for all checks, and one for what is outside of them if that is there.
func otherTimes(list []spent) []spent {
	checks, rest, lines := 0, spent{}, []spent(nil)
	for _, s := range list {
		if s.what == outsideChecks {
			lines = append(lines, s)
			continue
		}
		checks++
		rest.count += s.count
		rest.time += s.time
	}
	rest.what = Count(checks, "other check")
	return append([]spent{rest}, lines...)
}

// mostTimes is how many lines writeTimes gives names of their own.
const mostTimes = 12

// barLength is how many signs stand for the whole time.
const barLength = 40

// writeTimes writes a folded table of what the cases spent their time on, with a bar for each line.
// Cases in labs side by side count one by one, so that the sum is more than the run's time.
func writeTimes(w *bytes.Buffer, cases []Case) {
	list, sum := times(cases)
	if sum == 0 {
		return
	}
	if len(list) > mostTimes {
		list = append(list[:mostTimes:mostTimes], otherTimes(list[mostTimes:])...)
	}
	fmt.Fprintf(w, "\n<details><summary>Where the time of the cases went, %s in all</summary>\n\n", Elapsed(sum))
	fmt.Fprint(w, "| Check | How often | Time | Share | |\n|---|--:|--:|--:|---|\n")
	for _, s := range list {
		share := float64(s.time) / float64(sum)
		bar := strings.Repeat("█", int(share*barLength+0.5))
		fmt.Fprintf(w, "| %s | %d | %s | %.0f %% | %s |\n", cell(s.what), s.count, Elapsed(s.time), share*100, bar)
	}
	fmt.Fprint(w, "\n</details>\n")
}
