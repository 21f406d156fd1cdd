package main

import (
	"os"
	"strings"
	"sync"

	"dagger/parity/internal/fault"
)

// misbehave gives what an SSH server makes of the commands of a case (internal/cases/egress) when it was asked for a fault; nil
// when it was not. A session to the workspace under test looks like this: echo, look for the probe, perhaps copy it, --version,
// boot-id, marker, then perhaps echo and --version, then tcp with a nonce that begins with "target-", then perhaps echo, then boot-id.
func misbehave(asked fault.Fault) func(string) string {
	if asked == "" {
		return nil
	}
	var mu sync.Mutex
	var marked, dialled bool // it was seen to run; it made its request
	boots := 0
	return func(command string) string {
		mu.Lock()
		defer mu.Unlock()
		probe, arguments, isProbe := strings.Cut(command, " ")
		isProbe = isProbe && strings.HasSuffix(probe, "/parity-probe")
		verb, _, _ := strings.Cut(arguments, " ")
		target := isProbe && verb == "tcp" && strings.Contains(arguments, "target-")
		changed := command
		switch {
		case asked == fault.SSHDeadBefore && marked && !isProbe,
			asked == fault.SSHDeadDuring && target,
			asked == fault.SSHDeadAfter && dialled:
			os.Exit(1)
		case asked == fault.ProbeMissing && isProbe && verb == "--version",
			asked == fault.ProbeDeleted && isProbe && verb == "--version" && marked:
			changed = "rm -f " + probe + "; " + command
		case asked == fault.ProbeNotExecutable && isProbe && verb == "--version":
			changed = "chmod 644 " + probe + "; " + command
		case asked == fault.ProbeOtherArchitecture && isProbe && verb == "--version":
			// The machine is at offset 18 of an ELF header; 183, which is 0267, is that of arm64.
			changed = `printf '\267' | dd of=` + probe + ` bs=1 seek=18 conv=notrunc 2>/dev/null; ` + command
		case asked == fault.ProbeGarbage && target:
			changed = "echo garbage"
		case asked == fault.ProbeFails && target:
			changed = "exit 1"
		case asked == fault.BootIDChanges && isProbe && verb == "boot-id":
			if boots++; boots == 2 {
				changed = command + ` | sed 's/"bootId":"[0-9a-f]*/"bootId":"00000000/'`
			}
		}
		marked = marked || isProbe && verb == "marker"
		dialled = dialled || target
		return changed
	}
}
