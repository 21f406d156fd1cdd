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

// runs shows that what the remote runs is the workspace's runtime, and not another copy of it. The
// subject speaks to the runtime as long as an SSH session to the workspace is open. Where several
// files may be the workspace's, it is the one that is run, from then on.
func (s *scenario) runs() cases.Finding {
	there, beside, err := s.runningHere()
	if err == nil && s.machine.Mark() != "" {
		err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
			for i, one := range s.binaries {
				found, err := askRemote(ctx, s, probe.RunningArgs(one.Path), probe.ParseProcesses)
				if err != nil {
					return err
				}
				there[i] = append(there[i], lines(found)...)
			}
			return nil
		})
	}
	var run []held
	var seen []string
	for i, one := range s.binaries {
		if len(there[i]) > 0 {
			run, seen = append(run, one), append(seen, one.Path+": "+strings.Join(there[i], "; "))
		}
	}
	switch {
	case err != nil:
		return cases.Unclear("", err.Error(), "run it again")
	case len(beside) > 0:
		return cases.Broken("", "on this side: "+strings.Join(beside, "; "), "with agent.local false the runtime runs on the remote")
	case len(run) == 0:
		return cases.Unclear("", "no process of the remote's runs "+s.possible(),
			"the machine answers over SSH, and it cannot be told which runtime serves it: see whether the subject runs a copy elsewhere")
	case len(run) > 1:
		return cases.Unclear("one of them runs", strings.Join(seen, "; "), "it cannot be told which of the copies is the workspace's runtime")
	}
	s.binaries = run
	return cases.Passed(seen[0])
}

// possible names what may be the workspace's runtime.
func (s *scenario) possible() string {
	var files []file
	for _, one := range s.binaries {
		files = append(files, one.file)
	}
	return paths(files)
}

// runningHere lists the processes of this lab that run the workspace's runtime: on the remote,
// where that is in this lab, those of each of the very files that may be it, and beside it those of
// any file with its content.
func (s *scenario) runningHere() (there [][]string, beside []string, err error) {
	there = make([][]string, len(s.binaries))
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return there, nil, err
	}
	for _, link := range links {
		info, err := os.Stat(link)
		if err != nil {
			continue // the kernel's own, or gone
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return there, nil, err
		}
		inside, err := s.machine.Contains(pid)
		if err != nil {
			continue // gone
		}
		line := fmt.Sprintf("process %d", pid)
		st := info.Sys().(*syscall.Stat_t)
		if inside {
			for i, one := range s.binaries {
				if st.Dev == one.Device && st.Ino == one.Inode {
					there[i] = append(there[i], line)
				}
			}
		} else if info.Size() == s.binaries[0].Size {
			if content, err := os.ReadFile(link); err == nil && sumOf(content) == s.binaries[0].SHA256 {
				beside = append(beside, line)
			}
		}
	}
	return there, beside, nil
}
