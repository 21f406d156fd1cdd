package report

import "time"

// sample is a concluded report of a run of three cases: one passed, one failed, one could not tell.
func sample() Report { return Conclude(raw()) }

func raw() Report {
	check := func(phase, name string, v Verdict) Check {
		return Check{Phase: phase, Name: name, Verdict: v, Elapsed: 1500 * time.Millisecond}
	}
	refused := check("recreated", "deny", Fail)
	refused.Expected = "connect is refused or reset"
	refused.Seen = "connected, then 64 bytes | of <b>body</b>\nsecond line ``` \x1b[31mred"
	refused.Next = "look at msb inspect"
	control := check("created", "control-probe-before", Inconclusive)
	control.Seen = "time-out"
	return Report{
		Selected: []string{"contract/builtin/cli", "egress/builtin/public", "egress/builtin/deny"},
		Head: Head{
			RunID: "r1", Parity: "v0", KVM: "emulated", KVMReason: "msb doctor: no svm flag", Kernel: "6.1.0 #1 SMP",
			MicroSandbox: MicroSandbox{Version: "0.7.2", SHA256: "aa11", Pin: "pinned"},
			Subject:      Subject{Kind: "reference", Name: "parity devsy", SHA256: "bb22"},
		},
		Cases: []Case{
			{ID: "egress/builtin/deny", RunID: "r1", Verdict: Fail, Elapsed: 83 * time.Second, Checks: []Check{
				check("", "fixture/link", Pass), check("created", "workspace/up", Pass), check("created", "policy", Pass),
				check("recreated", "workspace/up", Pass), refused,
				check("recreated", "identity/same-boot", NotReached), check("", "receipts", NotReached),
			}},
			{ID: "contract/builtin/cli", RunID: "r1", Verdict: Pass, Elapsed: 9420 * time.Millisecond, Checks: []Check{
				check("", "ssh exit code", Pass), check("", "status of a missing workspace", Pass),
			}},
			{ID: "egress/builtin/public", RunID: "r1", Verdict: Inconclusive, Elapsed: time.Minute, Checks: []Check{
				control, check("created", "public", NotReached),
			}, Problems: []string{"clean-up: bridge p0 is still there"}},
		},
		Started: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC),
		Elapsed: 153 * time.Second,
	}
}

// passed is the raw sample with every check passed.
func passed() Report {
	r := raw()
	for i := range r.Cases {
		c := &r.Cases[i]
		for j := range c.Checks {
			c.Checks[j] = Check{Phase: c.Checks[j].Phase, Name: c.Checks[j].Name, Verdict: Pass}
		}
		c.Verdict, c.Problems = Pass, nil
	}
	return r
}
