package remoteagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/probe"
)

// runs shows that what the remote runs is the workspace's runtime, and not another copy of it. The subject speaks to the runtime as long as an SSH
// session to the workspace is open.
func (s *scenario) runs() cases.Finding {
	there, beside, err := s.runningHere()
	if err == nil && s.machine.Mark() != "" {
		err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
			found, err := askRemote(ctx, s, probe.RunningArgs(s.binary.Path), probe.ParseProcesses)
			there = append(there, lines(found)...)
			return err
		})
	}
	switch {
	case err != nil:
		return cases.Unclear("", err.Error(), "run it again")
	case len(beside) > 0:
		return cases.Broken("", "on this side: "+strings.Join(beside, "; "), "with agent.local false the runtime runs on the remote")
	case len(there) == 0:
		return cases.Unclear("", "no process of the remote's runs "+s.binary.Path,
			"the machine answers over SSH, and it cannot be told which runtime serves it: see whether the subject runs a copy elsewhere")
	}
	return cases.Passed(strings.Join(there, "; "))
}

// runningHere lists the processes of this lab that run the workspace's runtime: on the remote, where that is in this lab, those of the very
// file, and beside it those of any file with its content.
func (s *scenario) runningHere() (there, beside []string, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, nil, err
	}
	for _, link := range links {
		info, err := os.Stat(link)
		if err != nil {
			continue // the kernel's own, or gone
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, nil, err
		}
		inside, err := s.machine.Contains(pid)
		if err != nil {
			continue // gone
		}
		line := fmt.Sprintf("process %d", pid)
		st := info.Sys().(*syscall.Stat_t)
		switch {
		case inside && st.Dev == s.binary.Device && st.Ino == s.binary.Inode:
			there = append(there, line)
		case !inside && info.Size() == s.binary.Size:
			if content, err := os.ReadFile(link); err == nil && sumOf(content) == s.binary.SHA256 {
				beside = append(beside, line)
			}
		}
	}
	return there, beside, nil
}
