package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/link"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// providerName is the name under which a case adds the provider to the subject.
const providerName = "parity"

// Bench is what a case works with: the subject in a home of its own, and MicroSandbox with a store of its own.
type Bench struct {
	Subject    subject.CLI
	MSB        *msb.Client
	Workspaces string // a folder for the workspaces' folders
	Source     string // the SOURCE by which the subject adds the case's provider

	// Image is the reference of a plain image, once ServeImage was called: a registry of the case's
	// own and MicroSandbox's store have it.
	Image string

	// Write writes the folder of a workspace, which exists, before each up. Unless it is set, the folder gets a devcontainer.json with
	// Image.
	Write func(folder string) error

	// Served tells how often the external provider's runtime was asked for; nil for the built-in provider.
	Served func() int

	// Here is MicroSandbox on this machine, as the subject finds it in its environment, where the workspaces are to be elsewhere; else nil.
	Here *msb.Client

	dir       string // the case's folder
	carry     func(ctx context.Context, file string) (there string, err error)
	timed     func(string) func()
	elsewhere *Elsewhere // nil: the workspaces are on this machine
	image     plainImage
	asked     []string // the ids of the workspaces that the subject was asked to bring up
	users     sync.Map // by the id of a workspace, whom its last up reported
}

// Surroundings are what a subject finds around it besides its home.
type Surroundings struct {
	Environ []string // further entries of its environment, KEY=VALUE
	Path    []string // folders of programs

	Elsewhere *Elsewhere // the machine on which the workspaces are to be; nil is this one
}

// Elsewhere is another machine on which the subject is to make its workspaces.
type Elsewhere struct {
	MSB    string     // a program of this machine that runs msb there
	Source string     // the SOURCE of a provider that brings workspaces there
	Served func() int // tells how often that provider's runtime was asked for

	// Carry brings a file there, for msb to read, and says where it is then.
	Carry func(ctx context.Context, file string) (there string, err error)

	// Registry starts a registry that keeps its blobs in a folder. Both sides reach it by its Host,
	// over HTTPS.
	Registry func(ctx context.Context, folder string) (*registry.Registry, error)
	Bundle   string // a file with the certificates of the CAs that this side trusts, that of the registry among them
}

// NewLink makes the link of a case in the lab's network, with further addresses, and registers its removal.
func NewLink(runID string, c *Cleanup, others ...netip.Prefix) (*link.Link, error) {
	l, err := link.New(link.Options{Name: "p" + runID, Others: others})
	if err != nil {
		return nil, err
	}
	c.Add("the link", func(context.Context) error { return l.Close() })
	return l, nil
}

// NewBench makes a Bench below dir for a case of a provider. When the case ends, every workspace is deleted by the subject, and
// whatever MicroSandbox still has is removed.
func NewBench(e Env, provider string, r *Recorder, dir string, around Surroundings, c *Cleanup) (*Bench, error) {
	b := &Bench{Workspaces: filepath.Join(dir, "w"), dir: dir, timed: r.Timed, elsewhere: around.Elsewhere}
	b.image = plainImage{tag: e.RunID, probe: e.Probe, bare: "parity.test/bare:" + e.RunID}
	b.MSB = &msb.Client{Path: e.MSB, Home: filepath.Join(dir, "m"), Observe: func(op string, d time.Duration, _ error) { r.Operation("msb "+op, d) }}
	b.carry = func(_ context.Context, file string) (string, error) { return file, nil }
	if around.Elsewhere != nil {
		there := *b.MSB
		there.Path = around.Elsewhere.MSB
		b.Here, b.MSB, b.carry = b.MSB, &there, around.Elsewhere.Carry
		around.Environ = append(slices.Clone(around.Environ), "SSL_CERT_FILE="+around.Elsewhere.Bundle)
	}
	for _, folder := range []string{b.Workspaces, b.MSB.Home} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	c.Add("the image's registry", b.closeRegistry) // after the subject has deleted its workspaces
	c.Add("MicroSandbox's sandboxes", b.removeAll)
	b.Subject.Argv, b.Subject.Record = e.Subject, r.Command
	var err error
	if b.Subject.Adapter, err = e.speak(); err != nil {
		return nil, err
	}
	programs := filepath.Join(dir, "bin")
	if err := basics(programs); err != nil {
		return nil, err
	}
	b.Subject.Home = subject.Home{
		MSBHome: b.MSB.Home, Extra: append(fault.Environ(), around.Environ...),
		Path: strings.Join(slices.Concat([]string{filepath.Dir(e.MSB)}, around.Path, e.Path, []string{programs}), ":"),
	}
	if b.Subject.Home, err = b.NewHome("h"); err != nil {
		return nil, err
	}
	if around.Elsewhere != nil {
		b.Source, b.Served = around.Elsewhere.Source, around.Elsewhere.Served
		return b, nil
	}
	b.Source, b.Served, err = e.source(provider, dir, c)
	return b, err
}

// AddProvider has the subject add the provider of the workspaces.
func (b *Bench) AddProvider(ctx context.Context) error {
	return b.Subject.ProviderAdd(ctx, b.Source, providerName, nil)
}

// NewHome makes a home for the subject in a folder of the case, like that of the Bench's own subject.
func (b *Bench) NewHome(name string) (subject.Home, error) {
	h := b.Subject.Home
	h.Dir = filepath.Join(b.dir, name)
	return subject.NewHome(h)
}

// Up writes the folder of the workspace o.ID and has the subject bring the workspace up. The provider must have been added.
func (b *Bench) Up(ctx context.Context, o subject.UpOptions) (subject.UpResult, error) {
	dir, err := b.Folder(o.ID)
	if err != nil {
		return subject.UpResult{}, err
	}
	o.Provider, o.Dir = providerName, dir
	if !slices.Contains(b.asked, o.ID) {
		b.asked = append(b.asked, o.ID)
	}
	res, err := b.Subject.Up(ctx, o)
	if err == nil {
		b.users.Store(o.ID, res.RemoteUser)
	}
	return res, err
}

// Dial opens an SSH session to a workspace that came up, as the user that up reported.
func (b *Bench) Dial(ctx context.Context, id string) (*subject.Session, error) {
	user, ok := b.users.Load(id)
	if !ok {
		return nil, fmt.Errorf("the workspace %s did not come up, so its user is not known", id)
	}
	return b.Subject.Dial(ctx, id, user.(string))
}

// Sandbox returns a workspace as the subject lists it, and MicroSandbox's name of it.
func (b *Bench) Sandbox(ctx context.Context, id string) (w subject.Workspace, name string, err error) {
	if w, err = b.Subject.Find(ctx, id); err != nil {
		return w, "", err
	}
	name, err = b.Subject.Sandbox(ctx, w)
	return w, name, err
}

// Folder writes the folder of a workspace, and gives its path.
func (b *Bench) Folder(id string) (string, error) {
	dir := filepath.Join(b.Workspaces, id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if b.Write != nil {
		return dir, b.Write(dir)
	}
	return dir, WriteDevcontainer(dir, map[string]any{"image": b.Image})
}

// WriteDevcontainer writes the devcontainer.json of a workspace's folder.
func WriteDevcontainer(folder string, content map[string]any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, ".devcontainer"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, ".devcontainer", "devcontainer.json"), text, 0o644)
}

// Healthy shows that MicroSandbox itself can boot a sandbox here, with nothing of the subject in it.
func (b *Bench) Healthy(ctx context.Context) error {
	_, err := b.Bare(ctx)
	return err
}

// Bare gives how long MicroSandbox itself takes to create a sandbox here, with nothing of the
// subject in it.
func (b *Bench) Bare(ctx context.Context) (time.Duration, error) {
	if err := b.loadBare(ctx); err != nil {
		return 0, err
	}
	return createBare(ctx, b.MSB, b.image.bare)
}

// freeWanted is the space below which MicroSandbox cannot be expected to work.
const freeWanted = 64 << 20

// DiskFull gives an error when MicroSandbox's store has no room left.
func (b *Bench) DiskFull() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(b.MSB.Home, &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < freeWanted {
		return fmt.Errorf("the disk of MicroSandbox's store has %d MiB left", free>>20)
	}
	return nil
}

// NextRoom is what to do about a full disk.
const NextRoom = "give the lab more room: --disk where KVM is emulated, else free space in Parity's cache folder (PARITY_CACHE)"

// NoRoom tells whether what was said is about a full disk, in whoever's spelling. Who met it may have cleaned up since.
func NoRoom(said string) bool { return strings.Contains(strings.ToLower(said), unix.ENOSPC.Error()) }

// removeAll has the subject delete its workspaces, and then removes what MicroSandbox still has, which the subject should not
// have left.
func (b *Bench) removeAll(ctx context.Context) error {
	for _, id := range b.asked { // and not those of its list, which may be what is broken
		_ = b.Subject.Delete(ctx, id, true) // what it leaves is found below
	}
	err := removeLeft(ctx, b.MSB)
	if b.Here != nil {
		err = errors.Join(err, removeLeft(ctx, b.Here))
	}
	return err
}

// removeLeft removes every sandbox. That there was one is an error.
func removeLeft(ctx context.Context, m *msb.Client) error {
	left, err := m.List(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, box := range left {
		names = append(names, box.Name)
		err = errors.Join(err, m.Remove(ctx, box.Name))
	}
	if len(left) > 0 && err == nil {
		err = fmt.Errorf("after its workspaces were deleted, the subject left %s: %s; now removed", report.Count(len(left), "sandbox"), strings.Join(names, ", "))
	}
	return err
}
