package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/link"
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

	// Image is the reference of a plain image, which is in MicroSandbox's store once LoadImage was called.
	Image string

	// Write writes the folder of a workspace, which exists, before each up. Unless it is set, the folder gets a devcontainer.json with
	// Image.
	Write func(folder string) error

	// Served tells how often the external provider's runtime was asked for; nil for the built-in provider.
	Served func() int

	// Here is MicroSandbox on this machine, as the subject finds it in its environment, where the workspaces are to be elsewhere; else nil.
	Here *msb.Client

	dir    string // the case's folder
	carry  func(ctx context.Context, file string) (there string, err error)
	timed  func(string) func()
	loaded bool     // Image is in MicroSandbox's store
	asked  []string // the ids of the workspaces that the subject was asked to bring up
}

// Surroundings are what a subject finds around it besides its home.
type Surroundings struct {
	Environ []string // further entries of its environment, KEY=VALUE
	Path    []string // folders of programs that come before those of this machine

	Elsewhere *Elsewhere // the machine on which the workspaces are to be; nil is this one
}

// Elsewhere is another machine on which the subject is to make its workspaces.
type Elsewhere struct {
	MSB    string     // a program of this machine that runs msb there
	Source string     // the SOURCE of a provider that brings workspaces there
	Served func() int // tells how often that provider's runtime was asked for

	// Carry brings a file there, for msb to read, and says where it is then.
	Carry func(ctx context.Context, file string) (there string, err error)
}

// NewLink makes the link of a case in the lab's network and registers its removal.
func NewLink(runID string, c *Cleanup) (*link.Link, error) {
	l, err := link.New(link.Options{Name: "p" + runID})
	if err != nil {
		return nil, err
	}
	c.Add("the link", func(context.Context) error { return l.Close() })
	return l, nil
}

// NewBench makes a Bench below dir for a case of a provider. When the case ends, every workspace is deleted by the subject, and
// whatever MicroSandbox still has is removed.
func NewBench(e Env, provider string, r *Recorder, dir string, around Surroundings, c *Cleanup) (*Bench, error) {
	b := &Bench{Workspaces: filepath.Join(dir, "w"), Image: "parity.test/base:" + e.RunID, dir: dir, timed: r.Timed}
	b.MSB = &msb.Client{Path: e.MSB, Home: filepath.Join(dir, "m"), Observe: func(op string, d time.Duration, _ error) { r.Operation("msb "+op, d) }}
	b.carry = func(_ context.Context, file string) (string, error) { return file, nil }
	if around.Elsewhere != nil {
		there := *b.MSB
		there.Path = around.Elsewhere.MSB
		b.Here, b.MSB, b.carry = b.MSB, &there, around.Elsewhere.Carry
	}
	for _, folder := range []string{b.Workspaces, b.MSB.Home} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	c.Add("MicroSandbox's sandboxes", b.removeAll)
	b.Subject.Argv = e.Subject
	b.Subject.Home = subject.Home{
		MSBHome: b.MSB.Home, Extra: append(fault.Environ(), around.Environ...),
		Path: strings.Join(append(append([]string{filepath.Dir(e.MSB)}, around.Path...), os.Getenv("PATH")), ":"),
	}
	var err error
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

// LoadImage builds the plain image and puts it into MicroSandbox's store, if it is not there; where that is elsewhere, into this machine's too.
func (b *Bench) LoadImage(ctx context.Context) error {
	if b.loaded {
		return nil
	}
	done := b.timed("image build")
	img, err := images.Build(images.Spec{Nonce: Nonce("image")})
	if err != nil {
		return err
	}
	archive := filepath.Join(b.dir, "image.tar")
	if err := images.WriteDockerArchive(archive, b.Image, img); err != nil {
		return err
	}
	done()
	there, err := b.carry(ctx, archive)
	if err != nil {
		return err
	}
	if err := b.MSB.Load(ctx, there); err != nil {
		return err
	}
	if b.Here != nil { // so that a subject that makes the workspace here can, and is found out
		if err := b.Here.Load(ctx, archive); err != nil {
			return err
		}
	}
	b.loaded = true
	return os.Remove(archive)
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
	return b.Subject.Up(ctx, o)
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

// Bare gives how long MicroSandbox itself takes to create a sandbox here, with nothing of the subject in it.
func (b *Bench) Bare(ctx context.Context) (time.Duration, error) {
	if err := b.LoadImage(ctx); err != nil {
		return 0, err
	}
	return createBare(ctx, b.MSB, b.Image)
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
