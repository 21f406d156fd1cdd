package report

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func checked(name string, seconds int) Check {
	return Check{Name: name, Verdict: Pass, Elapsed: time.Duration(seconds) * time.Second}
}

// What a run took is all there, the longest first: a check of each phase and case counts under its name.
func TestTheSummarySaysWhereTheTimeWent(t *testing.T) {
	cases := []Case{
		{Elapsed: 60 * time.Second, Checks: []Check{checked("workspace/up", 20), checked("ssh", 5), checked("workspace/up", 25)}},
		{Elapsed: 40 * time.Second, Checks: []Check{checked("workspace/up", 30), {Name: "tree", Verdict: NotReached}}},
	}
	var got bytes.Buffer
	writeTimes(&got, cases)
	const want = `
<details><summary>Where the time of the cases went, 1m40s in all</summary>

| Check | How often | Time | Share | |
|---|--:|--:|--:|---|
| workspace/up | 3 | 1m15s | 75 % | ██████████████████████████████ |
| outside of the checks: homes, clean-ups | 2 | 20s | 20 % | ████████ |
| ssh | 1 | 5.0s | 5 % | ██ |

</details>
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

// Many checks get a line together, and nothing of their time is lost.
func TestTheSummaryOfManyChecksLosesNoTime(t *testing.T) {
	c := Case{Elapsed: 200 * time.Second}
	for i := range 20 {
		c.Checks = append(c.Checks, checked(strings.Repeat("x", i+1), 10))
	}
	var got bytes.Buffer
	writeTimes(&got, []Case{c})
	if lines := strings.Count(got.String(), " | 10s | 5 % | "); lines != mostTimes {
		t.Errorf("%d lines of one check, expected %d", lines, mostTimes)
	}
	if !strings.Contains(got.String(), "| 8 other checks | 8 | 1m20s | 40 % |") {
		t.Errorf("the rest is not there:\n%s", got.String())
	}
}

func TestARunThatReachedNothingListsNoTimes(t *testing.T) {
	var got bytes.Buffer
	writeTimes(&got, []Case{{Checks: []Check{{Name: "tree", Verdict: NotReached}}}})
	if got.Len() > 0 {
		t.Errorf("got %s", got.String())
	}
}
