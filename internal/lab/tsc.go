package lab

import (
	"bytes"
	"os"
	"slices"
	"time"
)

// An emulated machine's time stamp counter is this machine's own. Its kernel measures the counter's
// frequency at boot, against emulated timers, and measures wrongly on a busy machine: its clock then
// runs too fast for as long as it lives. So the frequency is measured here and given to it.

// frequencyWindow is over how long the frequency is measured: the two reads of a clock and the
// counter are some 100 ns apart.
const frequencyWindow = 50 * time.Millisecond

// counterKHz measures the frequency of this machine's time stamp counter. It is 0 where the counter
// does not count time, and the emulated machine must measure by itself.
func counterKHz() int {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !constantCounter(info) {
		return 0
	}
	start := readBoth()
	time.Sleep(frequencyWindow)
	end := readBoth()
	return int(float64(end.counter-start.counter) / float64(end.clock.Sub(start.clock)) * 1e6)
}

// constantCounter tells from /proc/cpuinfo whether the counter has one frequency and never stops.
func constantCounter(info []byte) bool {
	for line := range bytes.Lines(info) {
		name, flags, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(name)) != "flags" {
			continue
		}
		has := func(flag string) bool {
			return slices.ContainsFunc(bytes.Fields(flags), func(f []byte) bool { return string(f) == flag })
		}
		return has("constant_tsc") && has("nonstop_tsc")
	}
	return false
}

// moment is a read of the clock and of the counter at the same time.
type moment struct {
	clock   time.Time
	counter uint64
}

// readBoth reads the clock and the counter. Of several reads it takes the one between whose two
// reads of the clock the least time passed: nothing else ran there.
func readBoth() (best moment) {
	least := time.Duration(1<<63 - 1)
	for range 16 {
		before := time.Now()
		counter := readTSC()
		if took := time.Since(before); took < least {
			least, best = took, moment{before.Add(took / 2), counter}
		}
	}
	return best
}
