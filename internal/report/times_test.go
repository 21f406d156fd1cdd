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

// timesOfMany is the table of a case with twenty checks of ten seconds each.
func timesOfMany(elapsed time.Duration) string {
	c := Case{Elapsed: elapsed}
	for i := range 20 {
		c.Checks = append(c.Checks, checked(strings.Repeat("x", i+1), 10))
	}
	var b bytes.Buffer
	writeTimes(&b, []Case{c})
	return b.String()
}

// Many checks get a line together, and nothing of their time is lost.
func TestTheSummaryOfManyChecksLosesNoTime(t *testing.T) {
	got := timesOfMany(200 * time.Second)
	if lines := strings.Count(got, " | 10s | 5 % | "); lines != mostTimes {
		t.Errorf("%d lines of one check, expected %d", lines, mostTimes)
	}
	if !strings.Contains(got, "| 8 other checks | 8 | 1m20s | 40 % |") {
		t.Errorf("the rest is not there:\n%s", got)
	}
}

// What is outside of the checks is never counted as one of them.
func TestTheSummaryCountsNoTimeOutsideOfTheChecksAsACheck(t *testing.T) {
	got := timesOfMany(201 * time.Second)
	for _, want := range []string{"| 8 other checks | 8 | 1m20s |", "| outside of the checks: homes, clean-ups | 1 | 1.0s |"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestARunThatReachedNothingListsNoTimes(t *testing.T) {
	var got bytes.Buffer
	writeTimes(&got, []Case{{Checks: []Check{{Name: "tree", Verdict: NotReached}}}})
	if got.Len() > 0 {
		t.Errorf("got %s", got.String())
	}
}
