package cases

import (
	"context"
	"encoding/json"
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

// Bench is what a case works with: the subject in a home of its own, MicroSandbox with a store of its own, and an image in it.
type Bench struct {
	Subject    subject.CLI
	MSB        *msb.Client
	Image      string // the reference of the image, in MicroSandbox's store
	Workspaces string // a folder for the workspaces' folders
	Source     string // the SOURCE by which the subject adds the case's provider

	// Served tells how often the external provider's runtime was asked for; nil for the built-in provider.
	Served func() int

	asked []string // the ids of the workspaces that the subject was asked to bring up
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

// NewBench makes a Bench below dir for a case of a provider. When the case ends, every workspace is deleted by the subject, and whatever MicroSandbox still has
// is removed.
func NewBench(ctx context.Context, e Env, provider string, r *Recorder, dir string, c *Cleanup) (*Bench, error) {
	b := &Bench{Workspaces: filepath.Join(dir, "w"), Image: "parity.test/base:" + e.RunID}
	b.MSB = &msb.Client{Path: e.MSB, Home: filepath.Join(dir, "m"), Observe: func(op string, d time.Duration, _ error) { r.Operation("msb "+op, d) }}
	for _, folder := range []string{b.Workspaces, b.MSB.Home} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	c.Add("MicroSandbox's sandboxes", b.removeAll)

	done := r.Timed("image build")
	img, err := images.Build(images.Spec{Nonce: Nonce("image")})
	if err != nil {
		return nil, err
	}
	archive := filepath.Join(dir, "image.tar")
	if err := images.WriteDockerArchive(archive, b.Image, img); err != nil {
		return nil, err
	}
	done()
	if err := b.MSB.Load(ctx, archive); err != nil {
		return nil, err
	}
	if err := os.Remove(archive); err != nil {
		return nil, err
	}

	home, err := b.NewHome(filepath.Join(dir, "h"), e)
	if err != nil {
		return nil, err
	}
	b.Subject = subject.CLI{Argv: e.Subject, Home: home}
	b.Source, b.Served, err = e.source(provider, dir, c)
	return b, err
}

// AddProvider has the subject add the provider of the workspaces.
func (b *Bench) AddProvider(ctx context.Context) error {
	return b.Subject.ProviderAdd(ctx, b.Source, providerName, nil)
}

// NewHome makes a home for the subject below dir, with the case's MicroSandbox.
func (b *Bench) NewHome(dir string, e Env) (subject.Home, error) {
	return subject.NewHome(subject.Home{Dir: dir, MSBHome: b.MSB.Home, Path: filepath.Dir(e.MSB) + ":" + os.Getenv("PATH"), Extra: fault.Environ()})
}

// Up writes the folder of the workspace o.ID, if need be, and has the subject bring the workspace up with the case's image. The
// provider must have been added.
func (b *Bench) Up(ctx context.Context, o subject.UpOptions) (subject.UpResult, error) {
	dir, err := b.workspaceDir(o.ID)
	if err != nil {
		return subject.UpResult{}, err
	}
	o.Provider, o.Dir = providerName, dir
	if !slices.Contains(b.asked, o.ID) {
		b.asked = append(b.asked, o.ID)
	}
	return b.Subject.Up(ctx, o)
}

// workspaceDir makes the folder of a workspace whose devcontainer.json names the case's image, if need be.
func (b *Bench) workspaceDir(id string) (string, error) {
	dir := filepath.Join(b.Workspaces, id)
	config, err := json.Marshal(map[string]string{"image": b.Image})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, ".devcontainer", "devcontainer.json"), config, 0o644)
}

// Healthy shows that MicroSandbox itself can boot a sandbox here, with nothing of the subject in it.
func (b *Bench) Healthy(ctx context.Context) error {
	const name = "parity-bare"
	err := b.MSB.Create(ctx, msb.CreateOptions{Name: name, Image: b.Image, CPUs: 1, MemoryMiB: 256})
	if err == nil {
		err = b.MSB.Remove(ctx, name)
	}
	return err
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

// removeAll has the subject delete its workspaces, and then removes what MicroSandbox still has, which the subject should not
// have left.
func (b *Bench) removeAll(ctx context.Context) error {
	for _, id := range b.asked { // and not those of its list, which may be what is broken
		_ = b.Subject.Delete(ctx, id, true) // what it leaves is found below
	}
	left, err := b.MSB.List(ctx)
	if err != nil {
		return err
	}
	for _, box := range left {
		if rmErr := b.MSB.Remove(ctx, box.Name); rmErr != nil && err == nil {
			err = rmErr
		}
	}
	if len(left) > 0 && err == nil {
		names := make([]string, len(left))
		for i, box := range left {
			names[i] = box.Name
		}
		err = fmt.Errorf("after its workspaces were deleted, the subject left %s: %s; now removed", report.Count(len(left), "sandbox"), strings.Join(names, ", "))
	}
	return err
}
