package standin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/runtimeproto"
)

// createOptions are the flags of `msb create`.
type createOptions struct {
	image, name, memory, user, workdir, egress, pull string
	cpus                                             int
	env, labels, copies, rules                       []string
}

func (o *createOptions) flags(f *pflag.FlagSet) {
	f.StringVarP(&o.name, "name", "n", "", "")
	f.IntVarP(&o.cpus, "cpus", "c", 1, "")
	f.StringVarP(&o.memory, "memory", "m", "512M", "")
	f.StringArrayVarP(&o.env, "env", "e", nil, "")
	f.StringArrayVar(&o.labels, "label", nil, "")
	f.StringVarP(&o.user, "user", "u", "", "")
	f.StringVarP(&o.workdir, "workdir", "w", "", "")
	f.StringVar(&o.egress, "net-default-egress", "", "")
	f.StringArrayVar(&o.rules, "net-rule", nil, "")
	f.StringVar(&o.pull, "pull", "if-missing", "") // it pulls none
	f.StringArrayVar(&o.copies, "copy-file", nil, "")
}

// machine is the record of a sandbox that is to be created.
func (o createOptions) machine() (machine, error) {
	m := machine{
		Name: o.name, Image: o.image, CPUs: o.cpus, Env: o.env, Labels: map[string]string{}, User: o.user, Workdir: o.workdir,
		DenyEgress: o.egress == "deny", External: os.Getenv(runtimeproto.Handshake().MagicCookieKey) != "", Copies: o.copies, CreatedAt: time.Now().UTC(),
	}
	if !validName.MatchString(o.name) {
		return m, fmt.Errorf("invalid config: %q is no name for a sandbox", o.name)
	}
	if o.egress != "" && o.egress != "allow" && o.egress != "deny" {
		return m, &usageError{fmt.Sprintf("invalid value '%s' for '--net-default-egress'", o.egress), "msb create [OPTIONS] <IMAGE>"}
	}
	if len(o.rules) > 0 && !m.DenyEgress {
		return m, errors.New("the stand-in for msb takes --net-rule only with --net-default-egress deny")
	}
	for _, text := range o.rules {
		rules, err := parseRules(text)
		if err != nil {
			return m, &usageError{err.Error(), "msb create [OPTIONS] <IMAGE>"}
		}
		m.Rules = append(m.Rules, rules...)
	}
	var err error
	if m.MemoryMiB, err = strconv.Atoi(strings.TrimSuffix(o.memory, "M")); err != nil || m.MemoryMiB <= 0 || o.cpus <= 0 {
		return m, fmt.Errorf("invalid config: --cpus %d, --memory %s: expected numbers above 0, and M after that of the memory", o.cpus, o.memory)
	}
	for _, entry := range slices.Concat(o.labels, o.env) {
		if key, _, ok := strings.Cut(entry, "="); !ok || key == "" {
			return m, fmt.Errorf("invalid config: expected KEY=VALUE, seen %q", entry)
		}
	}
	for _, label := range o.labels {
		key, value, _ := strings.Cut(label, "=")
		m.Labels[key] = value
	}
	for _, c := range o.copies {
		if source, target, ok := strings.Cut(c, ":"); !ok || source == "" || !filepath.IsAbs(target) {
			return m, fmt.Errorf("invalid config: --copy-file %s: expected SOURCE:TARGET, and an absolute target", c)
		}
	}
	return m, nil
}

// slowCreate is by how much a create is slower in a slow lab: more than the self-test's patience
// has room for (cases.Bench.Slow), and far less than the deadline of an up.
const slowCreate = 5 * time.Second

func (s store) create(o createOptions) error {
	if fault.On(fault.CreateFails) {
		return fmt.Errorf("no sandbox can be created (%s)", fault.Env)
	}
	if fault.On(fault.ListHangsInASlowLab) {
		time.Sleep(slowCreate)
	}
	m, err := o.machine()
	if err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.machine(m.Name); err == nil {
		return fmt.Errorf("sandbox already exists: sandbox '%s' already exists", m.Name)
	} else if !errors.Is(err, msb.ErrNotFound) {
		return err
	}
	refs, err := s.references()
	if err != nil {
		return err
	}
	var known bool
	if m.ImageID, known = refs[m.Image]; !known {
		return fmt.Errorf("image error: %s is not in the image store, and the stand-in for msb pulls none at create: `msb pull %s` does", m.Image, m.Image)
	}
	if m.DenyEgress {
		if err := s.controlFaults(); err != nil {
			return err
		}
	}
	_, err = os.Stat(s.removedDir(m.Name)) // only a fault keeps a removed sandbox
	m.Recreated = err == nil
	if m.Recreated && fault.On(fault.RecreateRestarts) {
		if err := os.Rename(s.removedDir(m.Name), s.machineDir(m.Name)); err != nil {
			return err
		}
		if m, err = s.machine(m.Name); err != nil {
			return err
		}
		return s.boot(&m)
	}
	if err := s.makeFolder(m); err != nil {
		return err
	}
	return s.boot(&m)
}

// controlFaults does to every other sandbox what a fault asks for, when one is created whose egress is denied.
func (s store) controlFaults() error {
	if !fault.On(fault.ControlStopped) && !fault.On(fault.ControlMissing) {
		return nil
	}
	others, err := s.machines()
	for _, m := range others {
		err = errors.Join(err, s.halt(&m))
		if fault.On(fault.ControlMissing) {
			err = errors.Join(err, s.discard(m.Name))
		}
	}
	return err
}

// makeFolder makes the folder of a sandbox, all at once.
func (s store) makeFolder(m machine) error {
	made, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	if err := makeDisk(made); err != nil {
		return err
	}
	if m.Recreated && fault.On(fault.DiskKeptAtRecreation) {
		old := filepath.Join(s.removedDir(m.Name), diskDir)
		if err := errors.Join(os.RemoveAll(filepath.Join(made, diskDir)), os.Rename(old, filepath.Join(made, diskDir))); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(made, rootDir), 0o755); err != nil {
		return err
	}
	for _, file := range []string{aliveFile, logFile} {
		if err := os.WriteFile(filepath.Join(made, file), nil, 0o644); err != nil {
			return err
		}
	}
	m.UpdatedAt = m.CreatedAt
	if err := writeRecord(filepath.Join(made, recordFile), m); err != nil {
		return err
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	return os.Rename(made, s.machineDir(m.Name))
}

// makeDisk makes an empty disk in a sandbox's folder, in place of the one it has.
func makeDisk(dir string) error {
	disk := filepath.Join(dir, diskDir)
	return errors.Join(os.RemoveAll(disk), os.MkdirAll(filepath.Join(disk, "upper"), 0o755), os.MkdirAll(filepath.Join(disk, "work"), 0o755))
}

func (s store) start(name string) error {
	return s.change(name, func(m *machine, status msb.Status) error {
		if status == msb.StatusRunning {
			return fmt.Errorf("sandbox still running: cannot start sandbox '%s': already running", name)
		}
		return s.boot(m)
	})
}

func (s store) stop(name string) error {
	return s.change(name, func(m *machine, status msb.Status) error {
		if status == msb.StatusStopped {
			return nil
		}
		return s.halt(m)
	})
}

func (s store) remove(name string, force bool) error {
	return s.change(name, func(m *machine, status msb.Status) error {
		if status == msb.StatusRunning {
			if !force {
				return fmt.Errorf("sandbox still running: cannot remove sandbox '%s': still running", name)
			}
			if err := s.halt(m); err != nil {
				return err
			}
		}
		if fault.On(fault.RecreateRestarts) || fault.On(fault.DiskKeptAtRecreation) || fault.On(fault.DenyIgnoredAfterRecreation) {
			return errors.Join(os.RemoveAll(s.removedDir(name)), os.Rename(s.machineDir(name), s.removedDir(name)))
		}
		return s.discard(name)
	})
}

// change calls do with a sandbox's record and status, while nothing else changes it.
func (s store) change(name string, do func(*machine, msb.Status) error) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	m, err := s.machine(name)
	if err != nil {
		return err
	}
	status, err := s.status(m)
	if err != nil {
		return err
	}
	return do(&m, status)
}

// discard removes the folder of a sandbox that does not run: it is gone at once, or whole.
func (s store) discard(name string) error {
	made, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(s.machineDir(name), filepath.Join(made, name)), os.RemoveAll(made))
}

// execOptions are the flags of `msb exec`.
type execOptions struct {
	user, workdir string
	env           []string
}

func (o *execOptions) flags(f *pflag.FlagSet) {
	f.StringVarP(&o.user, "user", "u", "", "")
	f.StringVarP(&o.workdir, "workdir", "w", "", "")
	f.StringArrayVarP(&o.env, "env", "e", nil, "")
}

// exec runs a command in a sandbox with this process's own standard streams.
func (s store) exec(name string, o execOptions, argv []string) error {
	return s.booted(name, func(m machine) error {
		img, err := s.image(m.ImageID)
		if err != nil {
			return err
		}
		m.Env = slices.Concat(m.Env, o.env)
		user, dir := m.User, m.workdir(img)
		if user == "" {
			user = img.User
		}
		if o.user != "" {
			user = o.user
		}
		if o.workdir != "" {
			dir = o.workdir
		}
		answer, err := m.ask(request{Op: opExec, Argv: argv, Env: m.environ(img), User: user, Path: dir},
			os.Stdin, os.Stdout, os.Stderr)
		if err == nil && answer.Exit != 0 {
			err = exitCode(answer.Exit)
		}
		return err
	})
}

// workdir is the folder in which a sandbox's commands run.
func (m machine) workdir(img image) string {
	for _, dir := range []string{m.Workdir, img.Workdir} {
		if dir != "" {
			return dir
		}
	}
	return "/"
}

// copyIn copies a file into a sandbox.
func (s store) copyIn(source, destination string) error {
	name, target, ok := strings.Cut(destination, ":")
	if !ok || !filepath.IsAbs(target) {
		return fmt.Errorf("the stand-in for msb copies into sandboxes only: expected NAME:PATH, seen %q", destination)
	}
	return s.booted(name, func(m machine) error { return m.put(source, target, false) })
}

// put copies a file into a running sandbox, with its mode.
func (m machine) put(source, target string, withFolders bool) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = m.ask(request{Op: opPut, Path: target, Mode: info.Mode().Perm(), Folders: withFolders}, f)
	return err
}

// booted calls do with a sandbox that runs. One that does not is booted for it and stopped afterwards, as msb does.
func (s store) booted(name string, do func(machine) error) error {
	var running machine
	bootedHere := false
	err := s.change(name, func(m *machine, status msb.Status) (err error) {
		if status != msb.StatusRunning {
			bootedHere = true
			err = s.boot(m)
		}
		running = *m
		return err
	})
	if err != nil {
		return err
	}
	err = do(running)
	if bootedHere {
		if stopErr := s.stop(name); stopErr != nil {
			err = stopErr
		}
	}
	return err
}

// How long a guest may take to end, which is a kill, and how long its keeper may take to do it before it is killed itself.
const (
	endDeadline    = 20 * time.Second
	keeperDeadline = 5 * time.Second
)

// halt ends a sandbox that may run. It is called with the store locked.
func (s store) halt(m *machine) error {
	m.Started = false
	if err := s.save(m); err != nil {
		return err
	}
	alive, err := os.Open(filepath.Join(s.machineDir(m.Name), aliveFile))
	if err != nil {
		return err
	}
	defer alive.Close()
	if err := m.endKeeper(unix.SIGTERM); err != nil {
		return err
	}
	if waitLock(alive, keeperDeadline) == nil {
		return nil
	}
	if err := m.endKeeper(unix.SIGKILL); err != nil { // it was stopped, or hangs; the guest ends with it
		return err
	}
	if err := waitLock(alive, endDeadline); err != nil {
		return fmt.Errorf("sandbox '%s' still runs %s after it was killed: %w", m.Name, endDeadline, err)
	}
	return nil
}

// waitLock waits until the lock on a file can be had, and has it then.
func waitLock(f *os.File, deadline time.Duration) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the wait may outlive this call, and the file
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := unix.Flock(fd, unix.LOCK_EX)
		for err == unix.EINTR {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		done <- errors.Join(err, unix.Close(fd))
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(deadline):
		return os.ErrDeadlineExceeded
	}
}
