package cli

import (
	"dagger/parity/internal/lab"
	"github.com/spf13/cobra"
)

// refuseEmpty refuses the named flags where they were given with an empty value, which is mostly a variable that was not set: only a
// flag that is left out means its default.
func refuseEmpty(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if f := c.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return usageErrorf(`--%s "": the value is empty; give one, or leave the flag out; see %s --help`, name, c.CommandPath())
		}
	}
	return nil
}

// limit is the least value of a flag that is a number.
type limit struct {
	name  string
	least int
	unit  string // such as " MiB"
	why   string
}

// The limits of the flags that describe labs. Only a flag that is left out means its default: 0 is as bad as -1.
var (
	memoryLimit = limit{"memory", lab.MinMemoryMiB, " MiB", "the emulated machine must hold a kernel and a microVM"}
	diskLimit   = limit{"disk", lab.MinDiskGiB, " GiB", "the scratch disk must hold MicroSandbox's store; it is sparse"}
	cpusLimit   = limit{"cpus", 1, "", "the emulated machine needs a processor"}
	labsLimit   = limit{"labs", 1, "", "the cases need a lab to run in"}
)

// refuseBelow refuses the flags that were given and are below their limit.
func refuseBelow(c *cobra.Command, limits ...limit) error {
	for _, l := range limits {
		if !c.Flags().Changed(l.name) {
			continue
		}
		value, err := c.Flags().GetInt(l.name)
		if err != nil {
			return err
		}
		if value < l.least {
			return usageErrorf("--%s %d: the minimum is %d%s: %s; give more, or leave the flag out", l.name, value, l.least, l.unit, l.why)
		}
	}
	return nil
}

// refuseNoTime refuses the flags that were given and are not above 0.
func refuseNoTime(c *cobra.Command, names ...string) error {
	for _, name := range names {
		value, err := c.Flags().GetDuration(name)
		if err != nil {
			return err
		}
		if c.Flags().Changed(name) && value <= 0 {
			return usageErrorf("--%s %s: --%[1]s must be above 0; give a time such as 30m, or leave the flag out", name, value)
		}
	}
	return nil
}

// mostFactor is the largest factor of a deadline: more is no deadline.
const mostFactor = 1000

// refuseNoFactor refuses the flags that are not a number above 0 and up to mostFactor.
func refuseNoFactor(c *cobra.Command, names ...string) error {
	for _, name := range names {
		value, err := c.Flags().GetFloat64(name)
		if err != nil {
			return err
		}
		if !(value > 0 && value <= mostFactor) { // so that NaN is refused too
			return usageErrorf("--%s %g: expected a number above 0, and %d at most; give one such as 3, or leave the flag out", name, value, mostFactor)
		}
	}
	return nil
}
