package reference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/binaries"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/runtimeclient"
)

// openBuiltin gives the CLI's own driver. The options matter to a machine that is yet to be made.
func openBuiltin(options map[string]string) (driver.Driver, error) {
	parsed, err := msbdriver.ParseOptions(options)
	if err != nil {
		return nil, err
	}
	client, err := msbdriver.Locate()
	if err != nil {
		return nil, err
	}
	return msbdriver.Driver{MSB: client, Options: parsed, Log: os.Stderr}, nil
}

// external is a runtime as the driver of one workspace, for one command of the CLI: one process, which starts with the first call.
type external struct {
	there   *there // where the runtime is, if that is not here: then only log and running are used
	store   binaries.Store
	binary  binaries.Binary
	args    []string
	env     []string
	log     io.Writer // gets what the runtime says of itself, for people; nil is nobody
	running *runtimeclient.Runtime
}

var _ driver.Driver = (*external)(nil)

// openExternal gives the driver of a workspace whose provider has a manifest. Nothing is started, and nothing is downloaded.
func (s state) openExternal(id string, m *manifest.Manifest, options map[string]string) (*external, error) {
	key, b, err := m.Runtime(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	if err := checkOptions(m, options); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("set XDG_CACHE_HOME or HOME: %w", err)
	}
	return &external{
		store: binaries.Store{
			Dir:   filepath.Join(s.workspaceDir(id), "agent", "binaries"),
			Cache: filepath.Join(cache, "devsy", "providers"),
		},
		binary: binaries.Binary{Key: strings.ToLower(key), Name: b.Name, URL: b.URL, SHA256: b.SHA256},
		args:   m.Agent.External.Args,
		env:    runtimeEnviron(os.Environ(), m.Options, options),
	}, nil
}

// runtimeEnviron is the environment of a runtime: this process's own, and the provider's options. An option that is not set is not inherited
// either: what a workspace gets does not depend on who calls.
func runtimeEnviron(own []string, defaults, set map[string]string) []string {
	values := merged(defaults, set)
	env := slices.DeleteFunc(slices.Clone(own), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, isOption := values[name]
		return isOption
	})
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] != "" {
			env = append(env, name+"="+values[name])
		}
	}
	return env
}

// install brings the runtime here, if it is not here already. On a remote machine that is done when the runtime is started.
func (e *external) install(ctx context.Context) error {
	if e.there != nil {
		e.there.install = true
		return nil
	}
	_, err := e.store.Install(ctx, e.binary)
	return err
}

// runtime gives the runtime's process, and starts it for the first call.
func (e *external) runtime(ctx context.Context) (driver.Driver, error) {
	if e.running != nil {
		return e.running.Driver(), nil
	}
	if e.there != nil {
		running, err := e.there.start(ctx, e.log)
		if err != nil {
			return nil, err
		}
		e.running = running
		return e.running.Driver(), nil
	}
	path, err := e.store.Resolve(e.binary)
	if err != nil {
		return nil, fmt.Errorf("%w; `workspace up` brings it here again", err)
	}
	e.running, err = runtimeclient.Start(ctx, runtimeclient.Command{Path: copied(path), Args: e.args, Env: e.env, Log: e.log})
	if err != nil {
		return nil, err
	}
	return e.running.Driver(), nil
}

// Close ends the runtime's process, if there is one.
func (e *external) Close() error {
	if e.running != nil {
		e.running.Close()
		e.running = nil
	}
	return nil
}

// release ends what a driver has started for this command.
func release(d driver.Driver) {
	if c, ok := d.(io.Closer); ok {
		_ = c.Close()
	}
}

// Find implements driver.Driver.
func (e *external) Find(ctx context.Context, workspace string) (driver.Machine, bool, error) {
	d, err := e.runtime(ctx)
	if err != nil {
		return driver.Machine{}, false, err
	}
	return d.Find(ctx, workspace)
}

// Run implements driver.Driver.
func (e *external) Run(ctx context.Context, workspace string, o driver.RunOptions) (driver.Machine, error) {
	d, err := e.runtime(ctx)
	if err != nil {
		return driver.Machine{}, err
	}
	return d.Run(ctx, workspace, o)
}

// Start implements driver.Driver.
func (e *external) Start(ctx context.Context, workspace string) error {
	d, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	return d.Start(ctx, workspace)
}

// Stop implements driver.Driver.
func (e *external) Stop(ctx context.Context, workspace string) error {
	d, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	return d.Stop(ctx, workspace)
}

// Delete implements driver.Driver.
func (e *external) Delete(ctx context.Context, workspace string) error {
	d, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	return d.Delete(ctx, workspace)
}

// Exec implements driver.Driver.
func (e *external) Exec(ctx context.Context, workspace string, argv []string, s driver.Streams) (int, error) {
	d, err := e.runtime(ctx)
	if err != nil {
		return -1, err
	}
	return d.Exec(ctx, workspace, argv, s)
}

// open gives a workspace's record, and the driver of the machine that it has.
func (s state) open(id string) (w workspace, d driver.Driver, err error) {
	if w, err = s.workspace(id); err != nil {
		return w, nil, err
	}
	d, err = s.openAs(w, s.workspaceManifest(id), w.Provider.Options)
	return w, d, err
}

// openAs gives a driver for a workspace's machine, from a manifest if the provider has one.
func (s state) openAs(w workspace, manifestFile string, options map[string]string) (driver.Driver, error) {
	if w.Provider.Source == builtin {
		return openBuiltin(options)
	}
	m, err := storedManifest(manifestFile)
	if err != nil {
		return nil, err
	}
	if !m.Agent.Local {
		return openThere(w, m, options)
	}
	return s.openExternal(w.ID, m, options)
}

// openToMake gives a driver that can make a workspace's machine anew, from the provider's present manifest. What it needs is here then, and
// runs: a runtime that cannot be used must not leave a workspace which only it could delete.
func (s state) openToMake(ctx context.Context, w workspace, options map[string]string) (driver.Driver, error) {
	d, err := s.openAs(w, s.providerManifest(w.Provider.Name), options)
	if err != nil {
		return nil, err
	}
	if e, ok := d.(*external); ok {
		e.log = os.Stderr
		if err = e.install(ctx); err == nil {
			_, err = e.runtime(ctx)
		}
	}
	return d, err
}

// openToStart gives the driver of the machine that a workspace has, for `workspace up`: what it needs is here then.
func (s state) openToStart(ctx context.Context, w workspace) (driver.Driver, error) {
	d, err := s.openAs(w, s.workspaceManifest(w.ID), w.Provider.Options)
	if err != nil {
		return nil, err
	}
	if e, ok := d.(*external); ok {
		err = e.install(ctx)
	}
	return d, err
}

// keepManifest gives a workspace a copy of its provider's manifest: it outlives the provider.
func (s state) keepManifest(w workspace) error {
	if w.Provider.Source == builtin {
		return nil
	}
	m, err := storedManifest(s.providerManifest(w.Provider.Name))
	if err != nil {
		return err
	}
	return writeManifest(s.workspaceManifest(w.ID), m)
}

// forget removes what was made for a workspace that has no record.
func (s state) forget(id string) error {
	if _, err := s.workspace(id); !errors.Is(err, errNoRecord) {
		return nil
	}
	return os.RemoveAll(s.workspaceDir(id))
}
