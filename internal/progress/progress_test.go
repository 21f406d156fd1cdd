package progress

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/report"
)

var start = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// clock gives a time 1.1 seconds later at each reading.
func clock() func() time.Time {
	t := start
	return func() time.Time { t = t.Add(1100 * time.Millisecond); return t }
}

const (
	denyID   = "egress/builtin/deny"
	publicID = "egress/builtin/public"
)

func check(phase, name string, v report.Verdict) *report.Check {
	return &report.Check{Phase: phase, Name: name, Verdict: v}
}

// run is what two labs tell, interleaved.
func run(p *Progress) {
	broken := check("created", "policy", report.Fail)
	broken.Expected, broken.Seen, broken.Next = "deny", "allow\n\x1b[2Jrule 1", "look at msb inspect"
	result := report.Case{
		ID: publicID, Verdict: report.Fail, Elapsed: 83 * time.Second, Problems: []string{"clean-up: the link\nis still there"},
	}
	p.Note("using %d labs", 2)
	p.Event("1", report.Event{Kind: report.Started, Head: &report.Head{KVM: "emulated", MicroSandbox: report.MicroSandbox{Version: "0.7.2"}}})
	p.Event("1", report.Event{Kind: report.CaseStarted, Case: denyID})
	p.Event("2", report.Event{Kind: report.CaseStarted, Case: publicID})
	p.Event("1", report.Event{Kind: report.CheckStarted, Case: denyID, Check: check("restarted", "identity/boot-id", "")})
	p.Event("2", report.Event{Kind: report.CheckStarted, Case: publicID, Check: check("created", "policy", "")})
	p.Event("1", report.Event{Kind: report.CheckDone, Case: denyID, Check: check("restarted", "identity/boot-id", report.Pass)})
	p.Event("2", report.Event{Kind: report.CheckDone, Case: publicID, Check: broken})
	p.Event("1", report.Event{Kind: report.Note, Case: denyID, Text: "image built\n"})
	p.Event("2", report.Event{Kind: report.CaseDone, Case: publicID, Result: &result})
	p.Event("1", report.Event{Kind: report.CheckDone, Case: denyID, Check: check("", "receipts", report.NotReached)})
	p.Close()
	p.Note("done")
	p.Close()
}

// expectLog expects what a run's log is in a style.
func expectLog(t *testing.T, style Style, want string) {
	t.Helper()
	var b strings.Builder
	run(newProgress(&b, style, start, clock()))
	if got := b.String(); got != want {
		t.Errorf("the log is\n%s\nwant\n%s", got, want)
	}
}

func TestPlainLines(t *testing.T) {
	expectLog(t, Style{Verbose: true}, `[   1.1s] using 2 labs
[   2.2s] lab 1  started  KVM emulated, MicroSandbox 0.7.2
[   3.3s] egress/builtin/deny  started
[   4.4s] egress/builtin/public  started
[   5.5s] egress/builtin/deny  restarted  identity/boot-id  pass
[   6.6s] egress/builtin/public  created  policy  fail
            expected  deny
            seen      allow
                      \x1b[2Jrule 1
            next      look at msb inspect
[   7.7s] egress/builtin/deny  image built
[   8.8s] egress/builtin/public  FAIL  1m23s
            problem   clean-up: the link
                      is still there
[   9.9s] egress/builtin/deny  receipts  not reached
[  11.0s] done
`)
}

// Unless it is asked for more, a case is one line when it ends, and so is what broke before.
func TestShortLines(t *testing.T) {
	expectLog(t, Style{}, `[   1.1s] using 2 labs
[   2.2s] lab 1  started  KVM emulated, MicroSandbox 0.7.2
[   3.3s] egress/builtin/public  created  policy  fail
            expected  deny
            seen      allow
                      \x1b[2Jrule 1
            next      look at msb inspect
[   4.4s] egress/builtin/deny  image built
[   5.5s] egress/builtin/public  FAIL  1m23s
            problem   clean-up: the link
                      is still there
[   6.6s] done
`)
}

// A case that goes on and on is named with what it does, as its checks are no lines.
func TestACaseUnderWayIsNamedNowAndThen(t *testing.T) {
	var b bytes.Buffer
	now := start
	p := newProgress(&b, Style{}, start, func() time.Time { return now })
	p.Event("1", report.Event{Kind: report.CaseStarted, Case: denyID})
	for minute := range 12 {
		p.Event("1", report.Event{Kind: report.CheckStarted, Case: denyID, Check: check("created", fmt.Sprint("check-", minute), "")})
		p.mu.Lock()
		p.print(p.silent())
		p.mu.Unlock()
		now = now.Add(time.Minute)
	}
	p.Close()
	const want = "[ 300.0s] egress/builtin/deny  created check-5  still under way\n[ 600.0s] egress/builtin/deny  created check-10  still under way\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// A problem comes as a note when it happens, and is in the case's result again.
func TestAProblemIsShownOnce(t *testing.T) {
	const problem, unseen = "clean-up: the link\nis still there", "found at the end"
	for _, terminal := range []bool{false, true} {
		var b strings.Builder
		p := newProgress(&b, Style{Terminal: terminal}, start, clock())
		for _, id := range []string{denyID, publicID} { // what was told of one case is not told of the next
			p.Event("1", report.Event{Kind: report.CaseStarted, Case: id})
			p.Event("1", report.Event{Kind: report.Note, Case: id, Text: problem})
			p.Event("1", report.Event{Kind: report.CaseDone, Case: id, Result: &report.Case{
				ID: id, Verdict: report.Inconclusive, Problems: []string{problem, unseen},
			}})
		}
		p.Close()
		for _, text := range []string{"clean-up: the link", unseen} {
			if n := strings.Count(b.String(), text); n != 2 {
				t.Errorf("terminal %v: %q is shown %d times for two cases, want each once:\n%s", terminal, text, n, b.String())
			}
		}
	}
}

func TestTerminalLines(t *testing.T) {
	var b strings.Builder
	now := start.Add(62500 * time.Millisecond)
	run(newProgress(&b, Style{Terminal: true}, start, func() time.Time { return now }))
	const erase = "\r\x1b[K"
	want := strings.Join([]string{
		"[  62.5s] using 2 labs\n[   1m2s] ",
		"[  62.5s] lab 1  started  KVM emulated, MicroSandbox 0.7.2\n[   1m2s] ",
		"[   1m2s] egress/builtin/deny",
		"[   1m2s] egress/builtin/deny | egress/builtin/public",
		// With the whole ids the line would be wider than 80 columns.
		"[   1m2s] deny restarted identity/boot-id | public",
		"[   1m2s] deny restarted identity/boot-id | public created policy",
		"[   1m2s] deny restarted identity/boot-id | public created policy",
		"[  62.5s] egress/builtin/public  created  policy  fail\n" +
			"            expected  deny\n" +
			"            seen      allow\n" +
			"                      \\x1b[2Jrule 1\n" +
			"            next      look at msb inspect\n" +
			"[   1m2s] deny restarted identity/boot-id | public created policy",
		"[  62.5s] egress/builtin/deny  image built\n[   1m2s] deny restarted identity/boot-id | public created policy",
		"[  62.5s] egress/builtin/public  FAIL  1m23s\n" +
			"            problem   clean-up: the link\n" +
			"                      is still there\n" +
			"[   1m2s] egress/builtin/deny restarted identity/boot-id",
		"[   1m2s] egress/builtin/deny restarted identity/boot-id",
		"[  62.5s] done\n",
	}, erase)
	if got := b.String(); got != want {
		t.Errorf("the terminal gets\n%q\nwant\n%q", got, want)
	}
}

func TestTheProgressLineIsRewrittenAtEachTick(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, Style{Terminal: true}, start, clock())
	ticks := make(chan time.Time)
	p.ticking.Go(func() { p.follow(ticks) })
	for range 3 {
		ticks <- start
	}
	p.Close() // waits until the last tick was followed
	if got, want := b.String(), "[     1s] \r\x1b[K[     2s] \r\x1b[K[     3s] \r\x1b[K"; got != want {
		t.Errorf("three ticks write %q, want %q", got, want)
	}
}

// What a lab waits for is said, again and again, once it has told nothing for long.
func TestASilentLabIsNamedWithWhatItWaitsFor(t *testing.T) {
	var b bytes.Buffer
	now := start
	p := newProgress(&b, Style{Verbose: true}, start, func() time.Time { return now })
	p.Event("1", report.Event{Kind: report.CaseStarted, Case: denyID})
	p.Event("1", report.Event{Kind: report.CheckStarted, Case: denyID, Check: check("created", "deny", "")})
	p.Event("2", report.Event{Kind: report.CaseStarted, Case: publicID})
	ticks := make(chan time.Time)
	p.ticking.Go(func() { p.follow(ticks) })
	for range 12 {
		p.mu.Lock()
		now = now.Add(time.Minute)
		p.mu.Unlock()
		p.Event("2", report.Event{Kind: report.CheckStarted, Case: publicID, Check: check("created", "policy", "")})
		ticks <- now
		ticks <- now // once this is taken, the one before was followed
	}
	p.Close()
	var said []string
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "nothing new") {
			said = append(said, line)
		}
	}
	want := []string{
		"[ 360.0s] egress/builtin/deny  created deny  still under way; nothing new for 5m0s\n",
		"[ 660.0s] egress/builtin/deny  created deny  still under way; nothing new for 10m0s\n",
	}
	if !slices.Equal(said, want) {
		t.Errorf("it says %q, want %q", said, want)
	}
}

func TestTheProgressLineFitsARealTerminal(t *testing.T) {
	master, slave := openTerminal(t, 30)
	p := New(slave, Style{Terminal: true}, time.Now())
	p.Event("1", report.Event{Kind: report.CaseStarted, Case: denyID})
	p.Event("1", report.Event{Kind: report.CheckStarted, Case: denyID, Check: check("recreated", "control-probe-before", "")})
	p.Close()
	var seen []byte
	buffer := make([]byte, 4096)
	for !bytes.Contains(seen, []byte("deny recreated")) {
		n, err := master.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, seen)
		}
		seen = append(seen, buffer[:n]...)
	}
	for _, line := range strings.Split(string(seen), "\r\x1b[K") {
		if n := utf8.RuneCountInString(line); n > 29 {
			t.Errorf("a progress line of %d columns on a terminal of 30: %q", n, line)
		}
	}
}

// openTerminal makes a pseudo terminal of the given width that is closed at the test's end.
func openTerminal(t *testing.T, columns uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestLabsSideBySideKeepWholeLinesInOrder(t *testing.T) {
	const labs, checks = 4, 200
	var b bytes.Buffer // only Progress writes to it, one write at a time
	p := New(&b, Style{Verbose: true}, start)
	var wg sync.WaitGroup
	for lab := range labs {
		wg.Go(func() {
			id := fmt.Sprintf("egress/builtin/c%d", lab)
			for i := range checks {
				p.Event(fmt.Sprint(lab), report.Event{
					Kind: report.CheckDone, Case: id, Check: check("created", fmt.Sprintf("check-%d", i), report.Pass),
				})
			}
		})
	}
	wg.Wait()
	p.Close()
	next := map[string]int{}
	for line := range strings.Lines(b.String()) {
		_, rest, _ := strings.Cut(line, "] ")
		id, _, _ := strings.Cut(rest, "  ")
		if want := fmt.Sprintf("%s  created  check-%d  pass\n", id, next[id]); rest != want {
			t.Fatalf("the line %q, want %q", rest, want)
		}
		next[id]++
	}
	if len(next) != labs {
		t.Fatalf("lines of %d labs, want %d", len(next), labs)
	}
	for id, n := range next {
		if n != checks {
			t.Errorf("%s has %d lines, want %d", id, n, checks)
		}
	}
}
