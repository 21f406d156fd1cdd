package standin

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
)

// bootDeadline bounds a boot. It takes a fraction of a second.
const bootDeadline = time.Minute

// boot boots a sandbox that does not run. It is called with the store locked.
func (s store) boot(m *machine) error {
	if m.Boots > 0 && fault.On(fault.RestartRecreates) {
		m.CreatedAt = time.Now().UTC()
	}
	fresh := m.Boots == 0
	if !fresh && (fault.On(fault.RestartRecreates) || fault.On(fault.DiskLostAtRestart)) {
		if err := makeDisk(s.machineDir(m.Name)); err != nil {
			return err
		}
		fresh = true
	}
	if m.Boots == 0 || !fault.On(fault.RestartNoReboot) {
		m.BootID = uuid()
	}
	m.Boots++
	m.Started = true
	m.Socket = "parity-standin-" + rand.Text()
	if err := s.save(m); err != nil {
		return err
	}
	if err := s.startKeeper(*m); err != nil {
		m.Started = false
		return errors.Join(fmt.Errorf("boot sandbox '%s': %w", m.Name, err), s.save(m))
	}
	if !fresh {
		return nil
	}
	if err := s.firstBoot(*m); err != nil { // the record stays, as msb's does
		return errors.Join(err, s.halt(m))
	}
	return nil
}

// firstBoot does what is left to do once a sandbox has booted with an empty disk.
func (s store) firstBoot(m machine) error {
	img, err := s.image(m.ImageID)
	if err != nil {
		return err
	}
	for _, c := range m.Copies {
		source, target, _ := strings.Cut(c, ":")
		if err := m.put(source, target, true); err != nil {
			return err
		}
	}
	if m.External && fault.On(fault.ExternalAddsFile) {
		if err := m.put("/proc/version", "/opt/of-the-runtime", true); err != nil {
			return err
		}
	}
	if dir := m.workdir(img); dir != "/" {
		if _, err := m.ask(request{Op: opStat, Path: dir}); err != nil {
			return fmt.Errorf("invalid config: could not validate workdir in guest %q: sandbox fs error: %w", dir, err)
		}
	}
	return nil
}

// uuid gives a random UUID, as the kernel's boot IDs are.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// The descriptors that a keeper inherits.
const (
	keeperStatus = 3 // where it says that the guest is up, or why not
	keeperAlive  = 4 // the locked file
)

// startKeeper starts a sandbox's keeper and returns once the guest is up.
func (s store) startKeeper(m machine) error {
	dir := s.machineDir(m.Name)
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, name := range []string{os.DevNull, filepath.Join(dir, logFile)} {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	files = append(files, files[1])
	status, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close()
	files = append(files, theirs)
	alive, err := os.OpenFile(filepath.Join(dir, aliveFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	files = append(files, alive)
	if err := waitLock(alive, bootDeadline); err != nil {
		return fmt.Errorf("lock %s: %w", alive.Name(), err)
	}
	keeper, err := os.StartProcess("/proc/self/exe", []string{Program, commandKeeper},
		&os.ProcAttr{Dir: dir, Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	theirs.Close() // else the pipe does not end with the keeper
	_ = status.SetReadDeadline(time.Now().Add(bootDeadline))
	said, err := io.ReadAll(status)
	if err == nil && string(said) == guestIsUp {
		return keeper.Release()
	}
	_ = keeper.Kill()
	_, _ = keeper.Wait()
	if err == nil {
		err = errors.New(strings.TrimSpace(string(said)))
	}
	if said, logErr := os.ReadFile(filepath.Join(dir, logFile)); logErr == nil && len(said) > 0 {
		err = fmt.Errorf("%w; its log ends in %q", err, said[max(0, len(said)-500):])
	}
	return err
}

const guestIsUp = "up"

// keeperMain is the keeper of one guest, in its sandbox's folder.
func keeperMain() int {
	runtime.LockOSThread() // the init dies with the thread that started it: this one, which waits for it
	unix.CloseOnExec(keeperStatus)
	unix.CloseOnExec(keeperAlive)
	status := os.NewFile(keeperStatus, "status")
	guest, err := startGuest()
	if err != nil {
		_, _ = io.WriteString(status, err.Error())
		return 1
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGTERM)
	go func() {
		<-ends
		_ = guest.Kill()
	}()
	if _, err := io.WriteString(status, guestIsUp); err != nil { // whoever boots it was killed: nobody knows of the guest
		_ = guest.Kill()
	}
	status.Close()
	_, _ = guest.Wait() // this ends once every process of the guest has
	return 0
}

// startGuest starts the init of a guest, and its relay once it is up.
func startGuest() (*os.Process, error) {
	m, err := readRecord[machine](recordFile)
	if err != nil {
		return nil, err
	}
	if _, err := net.ListenUnix("unix", m.keeperSocket()); err != nil { // open until this process ends
		return nil, err
	}
	listener, err := net.ListenUnix("unix", m.socket())
	if err != nil {
		return nil, err
	}
	listening, err := listener.File()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "init"), os.NewFile(uintptr(pair[1]), "keeper")
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ours.Close()
	init, err := os.StartProcess("/proc/self/exe", []string{Program, commandInit}, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, listening, theirs, os.NewFile(keeperAlive, aliveFile)},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
			Pdeathsig:  unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the guest's namespaces: %w", err)
	}
	theirs.Close()
	listening.Close()
	listener.Close()
	if err := relayFor(m, conn.(*net.UnixConn)); err != nil {
		_ = init.Kill()
		_, _ = init.Wait()
		return nil, err
	}
	return init, nil
}

// relayFor waits until the guest is up and starts what its network needs on this side.
func relayFor(m machine, conn *net.UnixConn) error {
	var up answer
	fds, err := receive(conn, &up)
	if err != nil {
		return fmt.Errorf("the guest's init died before the guest was up: %w", err)
	}
	if up.Error != "" {
		return errors.New(up.Error)
	}
	e := m.enforcement()
	var files []*os.File
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "guest's socket")
		if i >= socketPackets {
			files = append(files, f)
			continue
		}
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		f.Close()
		go relay(l, besidesDNS(e.relay))
	}
	if len(fds) != socketRaw+1 {
		return fmt.Errorf("the guest's init sent %d sockets", len(fds))
	}
	go packets{from: files[0], to: files[1], enforcement: e}.pass()
	return nil
}
