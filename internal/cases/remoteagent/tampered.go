package remoteagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/report"
	"dagger/parity/internal/sshclient"
	"dagger/parity/internal/subject"
)

// variant is a runtime that only leaves a mark, with a workspace and a provider of its own. Both variants have a manifest with the SHA-256 of
// the whole one.
type variant struct {
	id, provider string // of the workspace, and the provider's name
	content      []byte
	mark         string            // the path on the remote of what it leaves when it is run; the other one's is another
	server       *artifacts.Server // nil until it is started
}

// tampered are a runtime, and the same with one byte changed after its manifest was written.
type tampered struct {
	whole, changed variant
	before         []msb.Listed // the remote's sandboxes before the up
	said           []error      // how each up of the changed one failed
}

// newTampered makes both. The byte that differs is the last letter of the mark's name: so a mark
// says which of them was run, and a subject may run the whole one as often as it likes, as when it
// deletes the workspace.
func newTampered(mark string) tampered {
	leaves := func(id, provider, mark string) variant {
		return variant{id: id, provider: provider, mark: mark, content: []byte("#!/bin/sh\n: >" + shellescape.Quote(mark) + "\nexit 1\n")}
	}
	return tampered{whole: leaves("whole", "parity-whole", mark+"w"), changed: leaves("tampered", "parity-tampered", mark+"c")}
}

// servers are those that were started.
func (t *tampered) servers() (list []*artifacts.Server) {
	for _, v := range []variant{t.whole, t.changed} {
		if v.server != nil {
			list = append(list, v.server)
		}
	}
	return list
}

// tamper makes the checks of a runtime that is not what its manifest says.
func (s *scenario) tamper(c *cases.Cleanup) {
	const phase = catalogue.Tampered
	s.check(phase, "mark", func() cases.Finding { return s.control(c) })
	s.check(phase, "up/refused", s.refused)
	s.check(phase, "up/checksum", s.namesChecksum)
	s.check(phase, "unexecuted", s.unexecuted)
	s.check(phase, "no-machine", s.noMachine)
}

// control shows that the subject runs what is whole, and that this tells that it was run: else it would prove nothing that the changed one does not
// tell.
func (s *scenario) control(c *cases.Cleanup) cases.Finding {
	const next = "run it again; the runtimes and their servers are the test's own"
	s.tampered = newTampered(path.Join(s.machine.Home(), "parity-mark-"+cases.Nonce("run")+"-"))
	t := &s.tampered
	for _, v := range []*variant{&t.whole, &t.changed} {
		if err := s.offer(v, c); err != nil {
			return cases.Unclear("", err.Error(), next)
		}
		add := func(ctx context.Context) error {
			return s.Bench.Subject.ProviderAdd(ctx, s.providerFile(v.provider), v.provider, nil)
		}
		if err := s.Bounded(workspace.GuestDeadline, add); err != nil {
			return s.Blame(err)
		}
	}
	said, err := s.upOf(t.whole)
	if err != nil {
		return s.Blame(err)
	}
	var ran, early, leaves, still bool
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		ran, err = s.exists(ctx, t.whole.mark)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	// Deleted before the other one's mark is looked for: a delete may run the runtime once more.
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error { return s.Bench.Subject.Delete(ctx, t.whole.id, true) })
	if err != nil {
		return s.Blame(err)
	}
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if early, err = s.exists(ctx, t.changed.mark); err != nil {
			return err
		}
		if leaves, still, err = s.trial(ctx, t.changed); err != nil {
			return err
		}
		t.before, err = s.Bench.MSB.List(ctx)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	if !ran || early || !leaves || still {
		return cases.Unclear("the subject runs the whole runtime, and the changed one leaves a mark of its own when this case runs it",
			fmt.Sprintf("the whole one's mark %s is there: %t; the changed one's %s was there early: %t, is left by it: %t, stays though it was removed: %t; the up said: %v",
				t.whole.mark, ran, t.changed.mark, early, leaves, still, said),
			"the subject is not seen to run a runtime that it should run, so nothing can be said of one that it should not")
	}
	return cases.Passed(t.whole.mark + " is there; " + t.changed.mark + " was there when this case ran the changed runtime itself, and is gone")
}

// trial runs the program of a variant on the remote, without the subject, and tells whether it
// leaves its mark, and whether that stays though it is removed.
func (s *scenario) trial(ctx context.Context, v variant) (leaves, stays bool, err error) {
	content := v.content
	if fault.On(fault.TamperedLeavesNoMark) {
		content = []byte("exit 1\n")
	}
	_, err = s.machine.Run(ctx, "sh -s", bytes.NewReader(content))
	if _, exited := errors.AsType[*sshclient.RunError](err); !exited && err != nil { // it fails, as it is no runtime
		return false, false, err
	}
	if leaves, err = s.exists(ctx, v.mark); err != nil || !leaves {
		return leaves, false, err
	}
	if err = s.remove(ctx, v.mark); err == nil {
		stays, err = s.exists(ctx, v.mark)
	}
	return leaves, stays, err
}

// offer serves a variant, and writes the manifest of its provider.
func (s *scenario) offer(v *variant, c *cases.Cleanup) (err error) {
	if v.server, err = artifacts.Start(s.listen(), cases.Nonce("runtime"), v.content); err != nil {
		return err
	}
	server := v.server
	c.Add("the server of the runtime of "+v.id, func(context.Context) error { return server.Close() })
	url, err := s.expose(v.server)
	if err != nil {
		return err
	}
	_, err = s.place(v.provider, manifest.Placement{RuntimeURL: url, SHA256: sumOf(s.tampered.whole.content)})
	c.Add("the workspace "+v.id, func(ctx context.Context) error { return s.Bench.Subject.Delete(ctx, v.id, true) })
	return err
}

// upOf has the subject bring the workspace of a variant up, and gives how that failed: nil when it did not.
func (s *scenario) upOf(v variant) (said, err error) {
	err = s.Bounded(upDeadline, func(ctx context.Context) error {
		dir, err := s.Bench.Folder(v.id)
		if err != nil {
			return err
		}
		_, said = s.Bench.Subject.Up(ctx, subject.UpOptions{ID: v.id, Provider: v.provider, Dir: dir})
		if ctx.Err() != nil {
			return fmt.Errorf("it took too long: %w", said)
		}
		return nil
	})
	return said, err
}

// refused shows that the subject does not bring the workspace up, neither with the download nor with what it may have kept of it.
func (s *scenario) refused() cases.Finding {
	for range 2 {
		said, err := s.upOf(s.tampered.changed)
		switch {
		case err != nil:
			return s.Blame(err)
		case said == nil:
			return cases.Broken("", "success", "a runtime whose SHA-256 is not the manifest's is not to be used")
		}
		if f := s.Blame(said); f.Verdict != report.Fail { // it failed for the sake of something else
			return f
		}
		s.tampered.said = append(s.tampered.said, said)
	}
	return cases.Passed(s.tampered.said[0].Error())
}

// namesChecksum shows that it was refused for the checksum's sake.
func (s *scenario) namesChecksum() cases.Finding {
	if asked, _ := apart(s.tampered.changed.server); len(asked) == 0 {
		return cases.Broken("", fmt.Sprintf("nobody asked for it; %v", s.tampered.said[0]), "it was refused for another reason than its checksum")
	}
	for _, said := range s.tampered.said {
		lower := strings.ToLower(said.Error())
		if up, ok := errors.AsType[*subject.UpError](said); ok { // its message may hide the reason
			lower += strings.ToLower(up.Stderr)
		}
		if !strings.Contains(lower, "checksum") && !strings.Contains(lower, "sha-256") && !strings.Contains(lower, "sha256") {
			return cases.Broken("", said.Error(), "who reads the error must learn that the download is not what the manifest pins")
		}
	}
	return cases.Passed(s.tampered.said[0].Error())
}

// unexecuted shows that the changed runtime was not run.
func (s *scenario) unexecuted() cases.Finding {
	mark := s.tampered.changed.mark
	var left bool
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		left, err = s.exists(ctx, mark)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	if left {
		return cases.Broken("", mark+" is there, which the changed runtime alone leaves", "what was downloaded is to be verified before it is run, and not after")
	}
	return cases.Passed("there is no " + mark)
}

// noMachine shows that the workspace has no machine.
func (s *scenario) noMachine() cases.Finding {
	stop, err := s.machineLeftBehind()
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	defer stop()
	var there, here []msb.Listed
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if there, err = s.Bench.MSB.List(ctx); err == nil {
			here, err = s.Bench.Here.List(ctx)
		}
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	there = slices.DeleteFunc(there, func(one msb.Listed) bool {
		return slices.ContainsFunc(s.tampered.before, func(b msb.Listed) bool { return b.Name == one.Name })
	})
	if len(there)+len(here) > 0 {
		return cases.Broken("", names(append(there, here...)), "an up that fails leaves no machine")
	}
	return cases.Passed("none on the remote that was not there before, and none on this side")
}
