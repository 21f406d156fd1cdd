package reference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/binaries"
)

// misbehaveThere is the fault of this process in how a remote machine is reached.
func misbehaveThere(t *there) *there {
	switch {
	case fault.On(fault.AgentHere):
		t.machine.Command = `exec /bin/sh -c "$COMMAND"`
		if s, err := openState(); err == nil {
			t.machine.Agent.Path = filepath.Join(s.dir, "agent-here")
		}
	case fault.On(fault.AgentNotDownloaded):
		t.machine.Agent.URL = ""
	}
	return t
}

// misbehavingInstall installs a runtime on this machine, a remote one, as the fault of this process says.
func misbehavingInstall(ctx context.Context, e *external) error {
	if installed, err := e.store.Resolve(e.binary); err == nil {
		if err := misbehaveAgain(ctx, e, installed); err != nil {
			return err
		}
	}
	switch {
	case fault.On(fault.RuntimeElsewhere):
		e.store.Dir = filepath.Join(os.TempDir(), "parity-elsewhere")
	case fault.On(fault.RuntimeDownloadedTwice):
		_, _ = binaries.Download{}.Get(ctx, e.binary.URL)
	}
	err := e.install(ctx)
	var sum *binaries.ChecksumError
	switch {
	case err == nil && fault.On(fault.RuntimeFromCache):
		return e.useCache()
	case err == nil && fault.On(fault.AgentStateElsewhere):
		return e.keepCopy()
	case !errors.As(err, &sum):
	case fault.On(fault.ChecksumUnnamed):
		return errors.New("the runtime cannot be used (PARITY_FAULT)")
	case fault.On(fault.ChecksumUnchecked):
		e.binary.SHA256 = sum.Seen
		return e.install(ctx)
	case fault.On(fault.RuntimeExecutedUnverified):
		return errors.Join(err, e.execute(ctx, sum.Seen))
	}
	return err
}

// misbehaveAgain does to an installed runtime what the fault says.
func misbehaveAgain(ctx context.Context, e *external, installed string) error {
	switch {
	case fault.On(fault.RuntimeDownloadedAgain):
		_, _ = binaries.Download{}.Get(ctx, e.binary.URL)
	case fault.On(fault.RuntimeReplaced):
		content, err := os.ReadFile(installed)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(installed+".new", content, 0o755), os.Rename(installed+".new", installed))
	case fault.On(fault.RuntimeModeLost):
		return os.Chmod(installed, 0o700)
	}
	return nil
}

// copied is the path of a copy of the runtime, if the fault asks for one.
func copied(path string) string {
	if !fault.On(fault.RuntimeCopied) {
		return path
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return path
	}
	other := filepath.Join(os.TempDir(), "parity-copy")
	if err := errors.Join(os.WriteFile(other+".new", content, 0o755), os.Rename(other+".new", other)); err != nil {
		return path
	}
	return other
}

// useCache has what was downloaded run in place of what is installed.
func (e *external) useCache() error {
	sum := sha256.Sum256([]byte(e.binary.URL))
	e.store.Dir, e.binary.Key, e.binary.Name = filepath.Dir(e.store.Cache), filepath.Base(e.store.Cache), hex.EncodeToString(sum[:])
	return os.Chmod(filepath.Join(e.store.Cache, e.binary.Name), 0o700)
}

// execute runs a runtime of another checksum, and leaves nothing of it.
func (e *external) execute(ctx context.Context, sum string) error {
	dir, err := os.MkdirTemp("", "parity-unverified-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, binary := e.store, e.binary
	store.Dir, store.Cache, binary.SHA256 = filepath.Join(dir, "binaries"), filepath.Join(dir, "cache"), sum
	path, err := store.Install(ctx, binary)
	if err == nil {
		_, _ = proc.Run(ctx, proc.Cmd{Argv: append([]string{path}, e.args...), Env: e.env})
	}
	return err
}

// agentState is where the agent on this machine, a remote one, has its records.
func agentState(s state) state {
	if fault.On(fault.AgentStateElsewhere) {
		contexts, name := filepath.Split(s.dir)
		s.dir = filepath.Join(filepath.Dir(filepath.Clean(contexts)), "agent", "contexts", name)
	}
	return s
}

// agentCache is where it has its downloads, by default in a folder.
func agentCache(s state, folder string) string {
	if fault.On(fault.AgentStateElsewhere) {
		return filepath.Join(s.dir, "downloads")
	}
	return folder
}

// keepCopy keeps a second copy of the runtime, which nobody runs.
func (e *external) keepCopy() error {
	path, err := e.store.Resolve(e.binary)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	folder := filepath.Join(e.store.Cache, "kept")
	return errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, e.binary.Name), content, 0o755))
}

// askedFor is where it is noted of which provider a workspace was asked for, also of one whose up
// failed.
func (s state) askedFor(id string) string { return filepath.Join(s.dir, "asked", id) }

// noteAsked notes it, for runAtDelete.
func noteAsked(id, provider string) {
	s, err := openState()
	if err != nil {
		return
	}
	file := s.askedFor(id)
	_ = errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(provider), 0o600)) // what is not noted is not run
}

// runAtDelete runs the runtime of a workspace on a remote machine once more: what is downloaded for
// that is verified as ever.
func runAtDelete(ctx context.Context, id string) {
	s, err := openState()
	if err != nil {
		return
	}
	name, err := os.ReadFile(s.askedFor(id))
	if err != nil {
		return
	}
	m, err := storedManifest(s.providerManifest(string(name)))
	if err != nil || m.Agent.Local {
		return
	}
	w := workspace{ID: id}
	w.Provider.Name = string(name)
	e, err := openThere(w, m, nil)
	if err != nil {
		return
	}
	e.there.install = true
	if _, err := e.runtime(ctx); err == nil { // else it was refused, or runs and is no runtime
		release(e)
	}
}
