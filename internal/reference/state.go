package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// contextName is the one context that the reference CLI has.
const contextName = "default"

// state is the CLI's records: below DEVSY_HOME, one file a provider and one a workspace, each replaced as a whole.
type state struct{ dir string }

// openState finds the records of this process's environment. Nothing is made before something is recorded.
func openState() (state, error) {
	dir := os.Getenv("DEVSY_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return state{}, fmt.Errorf("set DEVSY_HOME or HOME: %w", err)
		}
		dir = filepath.Join(home, ".devsy")
	}
	if !filepath.IsAbs(dir) {
		return state{}, fmt.Errorf("DEVSY_HOME: expected an absolute path, seen %q", dir)
	}
	return state{filepath.Join(dir, "contexts", contextName)}, nil
}

// provider is a registered provider.
type provider struct {
	Name    string            `json:"name"`
	Source  string            `json:"source"`
	Options map[string]string `json:"options"`
}

// workspace is the record of a workspace. It is written before the machine is made, and so a machine always has one.
type workspace struct {
	ID       string `json:"id"`
	UID      string `json:"uid"`
	Provider struct {
		Name    string            `json:"name"`
		Source  string            `json:"source"`
		Options map[string]string `json:"options"` // those that the machine was made with
	} `json:"provider"`
	Source struct {
		LocalFolder string `json:"localFolder"`
	} `json:"source"`
	Created      time.Time         `json:"creationTimestamp"`
	OwnOptions   map[string]string `json:"ownOptions,omitempty"` // given for this workspace; they go before the provider's
	RemoteUser   string            `json:"remoteUser"`
	RemoteFolder string            `json:"remoteWorkspaceFolder"`
	Made         bool              `json:"made"`              // the machine was made to the end
	Machine      string            `json:"machine,omitempty"` // its id
	Built        *builtImage       `json:"builtImage,omitempty"`
}

// errNoRecord is the error of a record that does not exist.
var errNoRecord = errors.New("not found")

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$`)

// checkName checks the id of a workspace or the name of a provider.
func checkName(what, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%s: expected at most 48 lower case letters, digits and dashes, with no dash at an end; seen %q", what, name)
	}
	return nil
}

func (s state) providerFile(name string) string {
	return filepath.Join(s.dir, "providers", name+".json")
}

// providerManifest is the manifest of an external provider, and workspaceManifest the one that a workspace's machine was made with.
func (s state) providerManifest(name string) string {
	return filepath.Join(s.dir, "providers", name+".yaml")
}
func (s state) workspaceManifest(id string) string {
	return filepath.Join(s.workspaceDir(id), "provider.yaml")
}

func (s state) workspaceDir(id string) string { return filepath.Join(s.dir, "workspaces", id) }
func (s state) workspaceFile(id string) string {
	return filepath.Join(s.workspaceDir(id), "workspace.json")
}

func (s state) provider(name string) (p provider, err error) {
	if err := checkName("provider", name); err != nil {
		return p, err
	}
	if err = read(s.providerFile(name), &p); errors.Is(err, errNoRecord) {
		err = fmt.Errorf("provider %q %w: add it with `provider add`", name, err)
	}
	return p, err
}

func (s state) providers() ([]provider, error) {
	return readAll[provider](s.dir, "providers/*.json")
}

func (s state) workspace(id string) (w workspace, err error) {
	if err := checkName("workspace id", id); err != nil {
		return w, err
	}
	if err = read(s.workspaceFile(id), &w); errors.Is(err, errNoRecord) {
		err = fmt.Errorf("workspace %q %w", id, err)
	}
	return w, err
}

func (s state) workspaces() ([]workspace, error) {
	return readAll[workspace](s.dir, "workspaces/*/workspace.json")
}

// lock takes a workspace for one command; the others wait. It works between processes, and ends with the process.
func (s state) lock(ctx context.Context, id string) (unlock func(), err error) {
	const patience = 15 * time.Minute // a first boot in an emulated lab is slow
	if err := checkName("workspace id", id); err != nil {
		return nil, err
	}
	// Not in the workspace's folder: that goes with the workspace, and a lock on a file that is gone locks nothing.
	dir := filepath.Join(s.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, id+".lock"))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := l.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return nil, fmt.Errorf("wait for another command on workspace %q to end: %w", id, err)
	}
	return func() { _ = l.Unlock() }, nil
}

func read(file string, into any) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoRecord
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("read the record %s: %w", file, err)
	}
	return nil
}

// readAll reads the records below dir whose files match the pattern; the list is never nil. One that has gone meanwhile is left out.
func readAll[T any](dir, pattern string) ([]T, error) {
	files, err := fs.Glob(os.DirFS(dir), pattern)
	list := []T{}
	for _, file := range files {
		var one T
		if err := read(filepath.Join(dir, file), &one); errors.Is(err, errNoRecord) {
			continue
		} else if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, err
}

// write replaces a record as a whole.
func write(file string, record any) error {
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(file, append(text, '\n'), 0o600)
}
