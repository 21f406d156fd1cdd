package remoteagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
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

// whole shows that the runtime arrived, and holds it open. It is found by its name and its content,
// as each CLI has folders of its own. A download cache may have it under the same name: which is
// the workspace's, runs tells.
func (s *scenario) whole() cases.Finding {
	b, err := s.runtimeFile()
	if err != nil {
		return cases.Unclear("", err.Error(), "see the external provider's manifest")
	}
	var all, named []file // what has the runtime's content, and what has its name
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if all, err = s.copies(ctx); err == nil {
			named, err = s.find(ctx, "-name "+b.Name)
		}
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	expected := fmt.Sprintf("below the home %s a regular file %s with execute bits and SHA-256 %s", s.machine.Home(), b.Name, b.SHA256)
	its := slices.DeleteFunc(slices.Clone(all), func(f file) bool { return path.Base(f.Path) != b.Name || f.Mode&0o111 == 0 })
	if len(its) == 0 {
		return cases.Broken(expected, fmt.Sprintf("of that name: %s; of that content: %s", described(named), described(all)),
			"what is run there is not what the manifest names, or is not below the agent's home (docs/remote-agent.md)")
	}
	for _, f := range its {
		if f.Born == "" {
			return cases.Unclear("a birth time", f.String(), "the file system of the remote's home keeps none, so a file that is made anew could look like the old one")
		}
		one := held{file: f}
		err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
			one.holder, err = s.hold(ctx, f.Path)
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), nextRemote)
		}
		s.binaries = append(s.binaries, one)
	}
	return cases.Passed(described(its))
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
	s.check(phase, "cache/removed", s.cacheRemoved)
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

// cacheRemoved removes every copy of the runtime below the remote's home but the one that was seen
// to run.
func (s *scenario) cacheRemoved() cases.Finding {
	its := s.binaries[0].Path
	var removed, left []file
	others := func(ctx context.Context) ([]file, error) {
		all, err := s.copies(ctx)
		return slices.DeleteFunc(all, func(f file) bool { return f.Path == its }), err
	}
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if removed, err = others(ctx); err != nil {
			return err
		}
		for _, f := range removed {
			if !fault.On(fault.RemoteCacheStays) {
				err = errors.Join(err, s.remove(ctx, f.Path))
			}
		}
		if err == nil {
			left, err = others(ctx)
		}
		return err
	})
	switch {
	case err != nil:
		return cases.Unclear("", err.Error(), nextRemote)
	case len(left) > 0:
		return cases.Unclear("no copy of the runtime but "+its, described(left), "while there is another copy it cannot be told what the runtime is taken from")
	case len(removed) == 0:
		return cases.Passed("the workspace's runtime is " + its + "; there was no other copy of it below " + s.machine.Home())
	}
	return cases.Passed("the workspace's runtime is " + its + "; removed the download cache's " + paths(removed))
}

// reused makes the checks of what the restart left alone.
func (s *scenario) reused(msb.Sandbox) {
	const phase = catalogue.Restarted
	s.check(phase, "binary/same", func() cases.Finding {
		var now file
		binary := s.binaries[0]
		err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
			if now, err = s.look(ctx, binary.Path); err == nil {
				err = s.held(ctx, binary.holder)
			}
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), nextRemote)
		}
		s.Observe(phase, "binary", "%s", map[bool]string{true: "the same file", false: "another file"}[now == binary.file])
		if now != binary.file {
			return cases.Broken(binary.String(), now.String(), "the file that was verified is to be kept as it is")
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
			"a script around the subject is no agent: give the subject as the executable itself, or its agent with --agent")
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
