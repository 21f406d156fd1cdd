package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
)

// store is what is below MSB_HOME:
//
//	standin/lock                 held by a command that changes something
//	standin/images/ID/image.json an image, and below root its files
//	standin/references.json      the id of the image of each reference
//	standin/machines/NAME/       a sandbox: see the constants below
//	standin/removed/NAME/        a sandbox that was removed, kept by some faults
//	standin/new-*                something half made, to be removed
type store struct {
	home string
	dir  string
}

// The entries of a sandbox's folder.
const (
	recordFile = "machine.json"
	aliveFile  = "alive" // locked as long as the sandbox runs
	logFile    = "log"   // what its keeper and its init had to say
	diskDir    = "disk"  // the upper and work folders of its root
	rootDir    = "root"  // where its root is mounted, in its own mount namespace
)

// machine is the record of a sandbox.
type machine struct {
	Name       string
	Image      string // the reference
	ImageID    string
	CreatedAt  time.Time
	UpdatedAt  time.Time
	CPUs       int
	MemoryMiB  int
	Env        []string // over the image's, KEY=VALUE
	Labels     map[string]string
	User       string
	Workdir    string
	DenyEgress bool
	Rules      []rule   // of the network policy
	External   bool     // an external runtime made it
	Copies     []string // SOURCE:TARGET

	Started   bool   // it was started and not stopped: if it does not run, it has crashed
	Boots     int    // how often it was booted
	BootID    string // of the last boot
	Socket    string // the abstract socket of the last boot's init
	Recreated bool   // it took the place of one of the same name
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func openStore() (store, error) {
	home := os.Getenv("MSB_HOME")
	if !filepath.IsAbs(home) {
		return store{}, fmt.Errorf("the stand-in for msb needs MSB_HOME, an absolute path; it is %q", home)
	}
	s := store{home: home, dir: filepath.Join(home, "standin")}
	for _, dir := range []string{"images", "machines", "removed"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			return s, err
		}
	}
	return s, nil
}

// lock waits until no other command changes something, and removes what a killed one left half made.
func (s store) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "new-*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func (s store) machineDir(name string) string { return filepath.Join(s.dir, "machines", name) }
func (s store) removedDir(name string) string { return filepath.Join(s.dir, "removed", name) }

// machine gives the record of a sandbox. The error of one that does not exist has msb's words.
func (s store) machine(name string) (m machine, err error) {
	if validName.MatchString(name) {
		m, err = readRecord[machine](filepath.Join(s.machineDir(name), recordFile))
	} else {
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s", msb.ErrNotFound, name)
	}
	return m, err
}

// machines gives the records of all sandboxes, the newest first.
func (s store) machines() ([]machine, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "machines"))
	if err != nil {
		return nil, err
	}
	var all []machine
	for _, e := range entries {
		m, err := s.machine(e.Name())
		if errors.Is(err, msb.ErrNotFound) {
			continue // removed a moment ago
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b machine) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, nil
}

func (s store) save(m *machine) error {
	m.UpdatedAt = time.Now().UTC()
	return writeRecord(filepath.Join(s.machineDir(m.Name), recordFile), m)
}

// status tells whether a sandbox runs by the lock that its keeper and its init hold.
func (s store) status(m machine) (msb.Status, error) {
	f, err := os.Open(filepath.Join(s.machineDir(m.Name), aliveFile))
	if err != nil {
		return "", err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return msb.StatusRunning, nil
	case err != nil:
		return "", err
	case m.Started:
		return msb.StatusCrashed, nil
	}
	return msb.StatusStopped, nil
}

// list is what `msb list` prints.
func (s store) list() ([]map[string]any, error) {
	all, err := s.machines()
	list := []map[string]any{}
	for _, m := range all {
		status, statusErr := s.status(m)
		err = errors.Join(err, statusErr)
		list = append(list, map[string]any{"created_at": m.CreatedAt, "image": m.Image, "name": m.Name, "status": status})
	}
	return list, err
}

// inspect is what `msb inspect` prints.
func (s store) inspect(name string) (map[string]any, error) {
	m, err := s.machine(name)
	if err != nil {
		return nil, err
	}
	status, err := s.status(m)
	if err != nil {
		return nil, err
	}
	img, err := s.image(m.ImageID)
	if err != nil {
		return nil, err
	}
	created := any(m.CreatedAt)
	switch {
	case fault.On(fault.StatusUnknown) && status == msb.StatusRunning:
		status = "Pondering"
	case fault.On(fault.NoCreationTime):
		created = nil
	}
	var active, pause any
	if status == msb.StatusRunning {
		active = m.config(img, !fault.On(fault.PolicyNotActive))
		pause = map[string]any{"capture_unavailable": nil, "paused": false, "recovery_required": false}
	}
	return map[string]any{
		"name": m.Name, "status": status, "created_at": created, "updated_at": m.UpdatedAt,
		"config": m.config(img, true), "active_config": active, "pending_changes": []any{}, "pause": pause,
	}, nil
}

// config is a sandbox's configuration as msb has it, without what nobody here reads.
func (m machine) config(img image, policy bool) map[string]any {
	network := map[string]any{"enabled": true, "ports": []any{}, "strict": false, "max_connections": nil, "trust_host_cas": false}
	if m.DenyEgress && policy {
		rules := append([]rule{}, m.Rules...)
		switch {
		case fault.On(fault.PolicyLooser):
			rules = append(rules, mustParse("allow@public")...)
		case fault.On(fault.PolicyRuleUnknown):
			rules = append(rules, mustParse("deny@any")...)
			rules[0].Action = "ponder"
		}
		network["policy"] = map[string]any{"default_egress": "deny", "default_ingress": "allow", "rules": rules}
	}
	if fault.On(fault.PolicyOfUnknownShape) {
		network["policy"] = map[string]any{"default_egress": "ponder", "default_ingress": "allow", "rules": []any{}}
	}
	env := []map[string]string{}
	for _, entry := range m.environ(img) {
		key, value, _ := strings.Cut(entry, "=")
		env = append(env, map[string]string{"key": key, "value": value})
	}
	return map[string]any{
		"name": m.Name, "env": env, "labels": m.Labels, "network": network, "mounts": []any{}, "manifest_digest": img.Digest,
		"image":     map[string]any{"Oci": map[string]any{"reference": m.Image}},
		"resources": map[string]any{"cpus": m.CPUs, "memory_mib": m.MemoryMiB},
		"runtime":   map[string]any{"user": null(m.User), "workdir": null(m.Workdir), "cmd": img.Cmd, "entrypoint": img.Entrypoint},
	}
}

// environ is the environment of the sandbox's commands: the image's, and over it the sandbox's own, sorted.
func (m machine) environ(img image) []string {
	merged := map[string]string{}
	for _, entry := range slices.Concat(img.Env, m.Env) {
		key, _, _ := strings.Cut(entry, "=")
		merged[key] = entry
	}
	var env []string
	for _, entry := range merged {
		env = append(env, entry)
	}
	slices.Sort(env)
	return env
}

// null is how an empty text is in msb's JSON.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func readRecord[T any](file string) (v T, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(content, &v); err != nil {
		return v, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}

func writeRecord(file string, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(file, append(content, '\n'), 0o644)
}
