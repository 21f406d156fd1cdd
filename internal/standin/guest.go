package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
)

// The descriptors that a guest's init inherits.
const (
	initListener = 3 // its socket
	initKeeper   = 4 // a connection to the keeper
	initAlive    = 5 // the locked file: it is held for as long as the init lives
)

// initMain is PID 1 of a guest, in its own namespaces, and at first in its sandbox's folder.
func initMain() int {
	for _, fd := range []int{initListener, initKeeper, initAlive} {
		unix.CloseOnExec(fd)
	}
	keeper, err := net.FileConn(os.NewFile(initKeeper, "keeper"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	listener, err := net.FileListener(os.NewFile(initListener, "requests"))
	var sockets []*os.File
	if err == nil {
		sockets, err = makeGuest()
	}
	var up answer
	if err != nil {
		up.Error = err.Error()
	}
	err = errors.Join(err, send(keeper.(*net.UnixConn), up, sockets...))
	keeper.Close()
	unix.Close(initKeeper)
	for _, f := range sockets {
		f.Close()
	}
	if err != nil {
		return 1
	}
	children := newChildren()
	for {
		conn, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		go children.serve(conn.(*net.UnixConn))
	}
}

// makeGuest makes what a guest sees: its root, its mounts and its network.
func makeGuest() ([]*os.File, error) {
	m, err := readRecord[machine](recordFile)
	if err != nil {
		return nil, err
	}
	if err := enterRoot(m); err != nil {
		return nil, err
	}
	if err := mountSystem(m); err != nil {
		return nil, err
	}
	name := m.Name[:min(len(m.Name), 64)]
	if err := unix.Sethostname([]byte(name)); err != nil {
		return nil, err
	}
	hosts := "127.0.0.1\tlocalhost " + name + "\n::1\tlocalhost ip6-localhost ip6-loopback " + name + "\n"
	err = errors.Join(os.MkdirAll("/etc", 0o755), os.WriteFile("/etc/hosts", []byte(hosts), 0o644),
		os.WriteFile("/etc/hostname", []byte(name+"\n"), 0o644),
		os.WriteFile("/etc/resolv.conf", []byte("nameserver "+gatewayAddress.String()+"\n"), 0o644))
	if err != nil {
		return nil, err
	}
	return makeNetwork(m.enforcement())
}

// enterRoot makes an overlay over the image this process's root. The folders are given relative to the sandbox's, so that no path is
// too long or has a comma.
func enterRoot(m machine) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the guest's mounts private: %w", err)
	}
	layers := fmt.Sprintf("lowerdir=../../images/%s/%s,upperdir=%s/upper,workdir=%s/work", m.ImageID, imageRoot, diskDir, diskDir)
	if err := unix.Mount("overlay", rootDir, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount the guest's root, an overlay (MSB_HOME must be on a file system such as ext4): %w", err)
	}
	if err := unix.Chdir(rootDir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root is then mounted over the new one
		return fmt.Errorf("enter the guest's root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave this machine's root: %w", err)
	}
	return unix.Chdir("/")
}

// mountSystem mounts /proc, /sys and /dev, and the boot ID of this boot over the kernel's.
func mountSystem(m machine) error {
	const plain = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, mount := range []struct {
		kind, target, options string
		flags                 uintptr
	}{
		{"proc", "/proc", "", plain | unix.MS_NODEV},
		{"sysfs", "/sys", "", plain | unix.MS_NODEV | unix.MS_RDONLY},
		{"tmpfs", "/dev", "mode=755,size=4m", plain},
		{"devpts", "/dev/pts", "newinstance,mode=600,ptmxmode=666", plain},
		{"tmpfs", "/dev/shm", "mode=1777,size=64m", plain | unix.MS_NODEV},
	} {
		if err := os.MkdirAll(mount.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount.kind, mount.target, mount.kind, mount.flags, mount.options); err != nil {
			return fmt.Errorf("mount the guest's %s: %w", mount.target, err)
		}
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR, int(unix.Mkdev(1, minor))); err != nil {
			return fmt.Errorf("make the guest's /dev/%s: %w", name, err)
		}
		if err := os.Chmod("/dev/"+name, 0o666); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	const own = "/dev/boot_id"
	if err := os.WriteFile(own, []byte(m.BootID+"\n"), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(own, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("set the guest's boot ID: %w", err)
	}
	return os.Remove(own)
}

// children are the processes that a guest's init has started. It reaps them, and those that they leave behind.
type children struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newChildren() *children {
	c := &children{waiting: map[int]chan syscall.WaitStatus{}}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			c.reap()
		}
	}()
	return c
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		if ch, ok := c.waiting[pid]; ok {
			delete(c.waiting, pid)
			ch <- ws
		}
	}
}

// start starts a process with the descriptors as its first ones. How it ended comes on the channel.
func (c *children) start(file string, argv []string, attr *syscall.ProcAttr) (pid int, ended <-chan syscall.WaitStatus, err error) {
	c.mu.Lock() // it is not reaped before it is known
	defer c.mu.Unlock()
	if pid, err = syscall.ForkExec(file, argv, attr); err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ch
	return pid, ch, nil
}

// serve answers one request.
func (c *children) serve(conn *net.UnixConn) {
	defer conn.Close()
	var r request
	fds, err := receive(conn, &r)
	if err != nil {
		return
	}
	var a answer
	switch {
	case r.Op == opExec && len(fds) == 3 && len(r.Argv) > 0:
		a.Exit, err = c.exec(conn, r, fds)
	case r.Op == opPut && len(fds) == 1:
		err = putFrom(r, fds[0])
	case r.Op == opStat:
		_, err = os.Stat(r.Path)
		closeAll(fds)
	default:
		closeAll(fds)
		err = fmt.Errorf("unknown request %q with %d files", r.Op, len(fds))
	}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(a) // whoever asked may be gone
}

// exec runs a command until it ends, or until whoever asked for it is gone, and gives its exit code.
func (c *children) exec(conn *net.UnixConn, r request, fds []int) (int, error) {
	u, err := lookUser(r.User)
	if err != nil {
		closeAll(fds)
		return 0, err
	}
	env := r.Env
	for _, entry := range []string{"HOME=" + u.home, "TERM=linux"} {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.ContainsFunc(r.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, entry)
		}
	}
	attr := &syscall.ProcAttr{
		Dir: r.Path, Env: env, Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}},
	}
	var pid int
	var ended <-chan syscall.WaitStatus
	file, err := findProgram(r.Argv[0], r.Env)
	if err == nil {
		pid, ended, err = c.start(file, r.Argv, attr)
	}
	closeAll(fds)
	if err != nil {
		kind := "Other"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			kind = "NotFound"
		case errors.Is(err, fs.ErrPermission):
			kind = "PermissionDenied"
		}
		return 0, fmt.Errorf("exec failed to start: ExecFailed { kind: %s, message: \"spawn %q: %w\" }", kind, r.Argv[0], err)
	}
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn) // nothing more is sent
		close(gone)
	}()
	var ws syscall.WaitStatus
	select {
	case ws = <-ended:
	case <-gone:
		_ = unix.Kill(-pid, unix.SIGKILL)
		ws = <-ended
	}
	if ws.Signaled() {
		return 255, nil // as msb says it
	}
	return ws.ExitStatus(), nil
}

// findProgram finds a program as a shell with env would.
func findProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, entry := range env {
		if list, ok := strings.CutPrefix(entry, "PATH="); ok {
			for _, dir := range filepath.SplitList(list) {
				file := filepath.Join(dir, name)
				if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
					return file, nil
				}
			}
		}
	}
	return "", syscall.ENOENT
}

// account is a user of the guest.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// lookUser finds a user of the guest by name or number, with an optional ":" and the name or number of a group. Empty means root.
func lookUser(name string) (account, error) {
	if name == "" {
		name = "0"
	}
	name, group, hasGroup := strings.Cut(name, ":")
	u := account{home: "/"}
	uid, err := strconv.ParseUint(name, 10, 32)
	u.uid = uint32(uid)
	found := err == nil
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, err
	}
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 6 || fields[0] != name && fields[2] != name {
			continue
		}
		uid, uidErr := strconv.ParseUint(fields[2], 10, 32)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return u, fmt.Errorf("the guest's /etc/passwd: %w", err)
		}
		u.uid, u.gid, u.home, found = uint32(uid), uint32(gid), fields[5], true
		break
	}
	if !found {
		return u, fmt.Errorf("the guest has no user %q", name)
	}
	if hasGroup {
		if u.gid, err = lookGroup(group); err != nil {
			return u, err
		}
	}
	if fault.On(fault.UserGroupLost) && u.uid != 0 {
		u.gid = 0
	}
	u.groups = []uint32{u.gid}
	return u, nil
}

func lookGroup(name string) (uint32, error) {
	groups, err := os.ReadFile("/etc/group")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	number := name
	for line := range strings.Lines(string(groups)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) > 2 && fields[0] == name {
			number = fields[2]
		}
	}
	gid, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("the guest has no group %q", name)
	}
	return uint32(gid), nil
}

// putFrom copies an open file to a path in the guest.
func putFrom(r request, fd int) (err error) {
	source := os.NewFile(uintptr(fd), "source")
	defer source.Close()
	defer func() {
		if err != nil {
			err = fmt.Errorf("sandbox fs error: %w", err)
		}
	}()
	if r.Folders {
		if err := os.MkdirAll(path.Dir(r.Path), 0o755); err != nil {
			return err
		}
	}
	target, err := os.OpenFile(r.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(r.Mode), target.Close())
}
