package remoteagent

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/httpfixture"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/tree"
)

// nextRemote is what to do when the remote could not be asked.
const nextRemote = "the remote could not be asked: run it again, and see the check fixture/remote"

// check makes a check of the scenario's own. What the subject broke is its failure only if the fixtures are intact.
func (s *scenario) check(phase, name string, check func() cases.Finding) {
	s.Check(phase, name, func() cases.Finding { return s.Excuse(check()) })
}

// delivered makes the checks of what the first up has brought to the remote.
func (s *scenario) delivered(msb.Sandbox) {
	const phase = catalogue.Created
	s.check(phase, "agent/delivered", s.agentDelivered)
	s.check(phase, "runtime/once", func() cases.Finding {
		all, strangers := apart(s.served.Runtime)
		s.Observe(phase, "runtime", "asked for %d times", len(all))
		if len(strangers) > 0 {
			return stranger(strangers)
		}
		if len(all) != 1 || !s.wasServed(all[0]) {
			return cases.Broken("", requests(all), "one download by the remote is enough for a workspace, and no other request is needed")
		}
		return cases.Passed(requests(all))
	})
	s.check(phase, "binary/whole", s.whole)
	s.check(phase, "place", s.there)
}

// whole shows that the runtime arrived, and holds it open.
func (s *scenario) whole() cases.Finding {
	name, sum, err := s.binaryPath()
	if err == nil {
		err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
			s.binary, err = s.look(ctx, name)
			return err
		})
	}
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	f := s.binary
	switch {
	case f.Type == probe.Missing:
		return cases.Broken("", name+" is not there", "a workspace's binaries are below its folder in the agent's home (docs/remote-agent.md)")
	case f.Type != tree.File || f.Mode&0o111 == 0 || f.SHA256 != sum:
		return cases.Broken("a regular file with execute bits and SHA-256 "+sum, f.String(), "what is run there is not what the manifest names")
	}
	if f.Born == "" {
		return cases.Unclear("a birth time", f.String(), "the file system of the remote's home keeps none, so a file that is made anew could look like the old one")
	}
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		s.holder, err = s.hold(ctx, name)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	return cases.Passed(f.String())
}

// there shows that the workspace's machine is the remote's.
func (s *scenario) there() cases.Finding {
	stop, err := s.machineBeside()
	if err != nil {
		return cases.Unclear("", err.Error(), "run it again")
	}
	defer stop()
	var here []msb.Listed
	var inside, beside []string
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if here, err = s.Bench.Here.List(ctx); err == nil && !s.StandIn {
			inside, beside, err = s.machines(ctx)
		}
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	const next = "with agent.local false everything of a workspace runs on the remote"
	switch {
	case len(here) > 0:
		return cases.Broken("", names(here)+" on this side", next)
	case s.StandIn:
		return cases.Passed("no sandbox on this side; the stand-in has no machine of KVM's to look for")
	case len(beside) > 0:
		return cases.Broken("every process that holds a machine of KVM's is the remote's", strings.Join(beside, "; "), next)
	case len(inside) == 0 && s.visits():
		return cases.Unclear("a process of the remote's, with "+s.machine.Mark()+" in its environment, that holds a machine of KVM's", "none",
			"where others have machines, too, the run's own are told by that entry, which the subject must hand on")
	case len(inside) == 0:
		return cases.Broken("a process of the remote's that holds a machine of KVM's", "none", next)
	}
	return cases.Passed("no sandbox on this side; the remote has " + strings.Join(inside, "; "))
}

// machines lists the processes that hold a machine of KVM's: those of the remote's, and those of this lab's beside it.
func (s *scenario) machines(ctx context.Context) (inside, beside []string, err error) {
	if mark := s.machine.Mark(); mark != "" {
		there, err := askRemote(ctx, s, probe.MachinesArgs(mark), probe.ParseProcesses)
		if err != nil {
			return nil, nil, err
		}
		inside = lines(there)
	}
	res, err := proc.Run(ctx, proc.Cmd{Argv: append([]string{s.Probe}, probe.MachinesArgs("")...)})
	if err != nil {
		return nil, nil, err
	}
	found, err := probe.ParseProcesses(res.Stdout)
	if err != nil {
		return nil, nil, err
	}
	for i, line := range lines(found) {
		its, err := s.machine.Contains(found.List[i].PID)
		switch {
		case err != nil:
			return nil, nil, err
		case its:
			inside = append(inside, line)
		default:
			beside = append(beside, line)
		}
	}
	return inside, beside, nil
}

// lines describes processes in a line each.
func lines(found probe.Processes) (list []string) {
	for _, one := range found.List {
		list = append(list, fmt.Sprintf("process %d, %s", one.PID, one.Command))
	}
	return list
}

func names(list []msb.Listed) string {
	var all []string
	for _, one := range list {
		all = append(all, one.Name)
	}
	return strings.Join(all, ", ")
}

// loseSource takes away what the runtime could be had from again: the agent's download cache, and the server.
func (s *scenario) loseSource() {
	const phase = catalogue.Restarted
	s.check(phase, "cache/removed", func() cases.Finding {
		entry := s.cacheEntry(s.runtimeURL)
		var there, left bool
		err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
			if there, err = s.exists(ctx, entry); err != nil || !there || fault.On(fault.RemoteCacheStays) {
				left = true
				return err
			}
			if err = s.remove(ctx, s.cacheFolder()); err == nil {
				left, err = s.exists(ctx, s.cacheFolder())
			}
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), nextRemote)
		}
		if !there || left {
			return cases.Unclear("", fmt.Sprintf("%s was there: %t; %s is left: %t", entry, there, s.cacheFolder(), left),
				"with a download cache elsewhere it cannot be told what the runtime is taken from (docs/remote-agent.md)")
		}
		return cases.Passed(s.cacheFolder() + " is gone")
	})
	s.check(phase, "runtime/offline", func() cases.Finding {
		s.served.Runtime.SetOffline(!fault.On(fault.RuntimeStaysOnline))
		err := s.answers(s.served.Runtime, http.StatusNotFound)
		if err == nil {
			err = s.answers(s.served.Agent, http.StatusOK)
		}
		if err != nil {
			return cases.Unclear("", err.Error(), "the servers are the test's own: run it again")
		}
		s.asked++
		if fault.On(fault.RemoteDies) {
			_ = s.Bounded(workspace.GuestDeadline, s.machine.Kill) // what lives on breaks no check
		}
		return cases.Passed("the runtime's answers 404, the agent's 200")
	})
}

// reused makes the checks of what the restart left alone.
func (s *scenario) reused(msb.Sandbox) {
	const phase = catalogue.Restarted
	s.check(phase, "binary/same", func() cases.Finding {
		var now file
		err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
			if now, err = s.look(ctx, s.binary.Path); err == nil {
				err = s.held(ctx, s.holder)
			}
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), nextRemote)
		}
		s.Observe(phase, "binary", "%s", map[bool]string{true: "the same file", false: "another file"}[now == s.binary])
		if now != s.binary {
			return cases.Broken(s.binary.String(), now.String(), "the file that was verified is to be kept as it is")
		}
		return cases.Passed(now.String())
	})
	s.check(phase, "place", s.there)
}

// apart tells the requests for a server's runtime from those for anything else, which are strangers': its name is not to be guessed, and on a
// machine that is not the test's own anybody may look at what listens there.
func apart(one *artifacts.Server) (asked, strangers []httpfixture.Request) {
	for _, r := range one.Receipts().Requests {
		if r.Path == "/"+one.Name() {
			asked = append(asked, r)
		} else {
			strangers = append(strangers, r)
		}
	}
	return asked, strangers
}

// stranger is the finding where others have asked the runtime's server, too.
func stranger(list []httpfixture.Request) cases.Finding {
	return cases.Unclear("", requests(list)+" for what is no runtime", "somebody else on the remote, or the subject, asks the forwarded ports: see who it is, and run it again")
}

// unasked shows that the runtime was asked for only once by others than this case, up to now.
func (s *scenario) unasked() cases.Finding {
	all, strangers := apart(s.served.Runtime)
	if len(strangers) > 0 {
		return stranger(strangers)
	}
	s.Observe(catalogue.Restarted, "runtime", "asked for %d times more", len(all)-1-s.asked)
	if len(all) != 1+s.asked {
		return cases.Broken(fmt.Sprintf("the delivery, and this case's own %s", report.Count(s.asked, "request")), requests(all),
			"the verified copy is to be used, not looked for again")
	}
	return cases.Passed("no further request")
}

// agentDelivered shows that the remote has downloaded the agent that it has.
func (s *scenario) agentDelivered() cases.Finding {
	all := s.served.Agent.Receipts().Requests
	transfers := 0
	for _, r := range all {
		if s.wasServed(r) {
			transfers++
		}
	}
	if transfers == 0 {
		return cases.Broken("", requests(all), "the manifest's agent.downloadURL is where the remote gets the agent; see what the subject says of it")
	}
	var agent file
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		agent, err = s.look(ctx, s.manifest.Agent.Path)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	if agent.SHA256 != s.agentSum {
		return cases.Unclear("the agent that was served, SHA-256 "+s.agentSum, agent.String(),
			"give the subject as the executable itself: what is served as the agent is the subject's file, and a script around it is not an agent")
	}
	return cases.Passed(report.Count(transfers, "transfer"))
}

// wasServed tells whether the remote got a whole file by the request.
func (s *scenario) wasServed(r httpfixture.Request) bool {
	return r.Peer == s.machine.Address().String() && r.Method == http.MethodGet && r.Status == http.StatusOK
}

// requests is a list of requests in one line.
func requests(list []httpfixture.Request) string {
	lines := []string{report.Count(len(list), "request")}
	for _, r := range list[:min(len(list), 5)] {
		lines = append(lines, fmt.Sprintf("%s %s from %s: %d", r.Method, r.Path, r.Peer, r.Status))
	}
	return strings.Join(lines, "; ")
}
