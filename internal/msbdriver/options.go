package msbdriver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are what a workspace's machine is made with. They are used by Run only: a machine keeps what it was made with. 0 leaves a
// number to MicroSandbox.
type Options struct {
	MemoryMiB, MaxMemoryMiB int
	CPUs, MaxCPUs           int
	StorageGiB              int
	BlockEgress             bool          // the machine can open no connection to the outside
	InactivityTimeout       time.Duration // after how long without activity it is stopped
}

// The names of the options.
const (
	memoryOption      = "MICROSANDBOX_MEMORY"
	maxMemoryOption   = "MICROSANDBOX_MAX_MEMORY"
	cpusOption        = "MICROSANDBOX_CPUS"
	maxCPUsOption     = "MICROSANDBOX_MAX_CPUS"
	storageOption     = "MICROSANDBOX_STORAGE"
	blockEgressOption = "MICROSANDBOX_BLOCK_EGRESS"
	ephemeralOption   = "MICROSANDBOX_EPHEMERAL"
	inactivityOption  = "INACTIVITY_TIMEOUT"
)

// OptionNames are the names of the options, sorted.
func OptionNames() []string {
	names := []string{memoryOption, maxMemoryOption, cpusOption, maxCPUsOption, storageOption, blockEgressOption, ephemeralOption, inactivityOption}
	slices.Sort(names)
	return names
}

const mostMemoryMiB, mostCPUs, mostStorageGiB = 1 << 20, 255, 1 << 14

// ParseOptions reads options by their names, and fails on a name that it does not know and on a value that is none. As in Devsy's
// built-in driver, egress is blocked when the value is "true" and by no other spelling.
func ParseOptions(values map[string]string) (Options, error) {
	return parse(values, func(text string) (bool, error) { return text == "true", nil })
}

// ParseEnvironment reads options from an environment, KEY=VALUE, as an external runtime does: what it does not know is not its own, an
// empty value is none, and a boolean is spelled in any way that strconv.ParseBool knows, such as 1 or TRUE. Anything else is an error.
func ParseEnvironment(environ []string) (Options, error) {
	values, known := map[string]string{}, OptionNames()
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); slices.Contains(known, name) && value != "" {
			values[name] = value
		}
	}
	return parse(values, func(text string) (bool, error) {
		value, err := strconv.ParseBool(text)
		if err != nil {
			return false, fmt.Errorf("expected true or false, or 1 or 0, seen %q", text)
		}
		return value, nil
	})
}

func parse(values map[string]string, boolean func(string) (bool, error)) (Options, error) {
	o := Options{MemoryMiB: 512, CPUs: 1}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		var err error
		switch name {
		case memoryOption:
			o.MemoryMiB, err = number(value, 64, mostMemoryMiB)
		case maxMemoryOption:
			o.MaxMemoryMiB, err = number(value, 64, mostMemoryMiB)
		case cpusOption:
			o.CPUs, err = number(value, 1, mostCPUs)
		case maxCPUsOption:
			o.MaxCPUs, err = number(value, 1, mostCPUs)
		case storageOption:
			o.StorageGiB, err = number(value, 1, mostStorageGiB)
		case blockEgressOption:
			o.BlockEgress, err = boolean(value)
		case ephemeralOption:
			var ephemeral bool
			if ephemeral, err = boolean(value); ephemeral {
				err = fmt.Errorf("seen %q: machines that go away by themselves are not supported", value)
			}
		case inactivityOption:
			o.InactivityTimeout, err = duration(value)
		default:
			return o, fmt.Errorf("unknown option %s: expected one of %s", name, strings.Join(OptionNames(), ", "))
		}
		if err != nil {
			return o, fmt.Errorf("option %s: %w", name, err)
		}
	}
	if o.MaxMemoryMiB != 0 && o.MaxMemoryMiB < o.MemoryMiB {
		return o, fmt.Errorf("option %s: expected at least the memory, %d MiB, seen %d", maxMemoryOption, o.MemoryMiB, o.MaxMemoryMiB)
	}
	if o.MaxCPUs != 0 && o.MaxCPUs < o.CPUs {
		return o, fmt.Errorf("option %s: expected at least the CPUs, %d, seen %d", maxCPUsOption, o.CPUs, o.MaxCPUs)
	}
	return o, nil
}

func number(text string, lowest, highest int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > highest {
		return 0, fmt.Errorf("expected a whole number from %d to %d, seen %q", lowest, highest, text)
	}
	return n, nil
}

// duration reads one such as "90s" or "1h30m", in whole seconds; "0" is never.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Second != 0 {
		return 0, fmt.Errorf("expected a duration in whole seconds such as 90s or 1h30m, seen %q", text)
	}
	return d, nil
}
