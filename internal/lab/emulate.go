package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/sshserver"
)

// emulateMain keeps the emulated machine: it starts virtiofsd and QEMU, runs the command over the machine's command channel,
// copies the report out and says how it went. Whatever it leaves running ends with the box's namespaces.
func emulateMain() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	var j job
	var s status
	words, telling := json.NewEncoder(os.NewFile(fdStatus, "status")), sync.Mutex{}
	tell := func(s status) {
		telling.Lock()
		defer telling.Unlock()
		_ = words.Encode(s) // nobody listens any more where this fails
	}
	if err := json.NewDecoder(os.NewFile(fdConfig, "config")).Decode(&j); err != nil {
		s.Error = err.Error()
	} else {
		k := keeper{job: &j, signals: signals, console: &console{}, died: make(chan error, 2), tell: tell}
		if err := k.run(&s); err != nil {
			s.Error, s.Clock = k.explain(err), errors.Is(err, ErrClock)
		}
	}
	tell(s)
	os.Exit(0)
}

type keeper struct {
	*job
	tell    func(status) // tells whoever started the lab
	qemu    *os.Process
	booted  time.Time // when QEMU was started
	signals chan os.Signal
	console *console
	died    chan error // QEMU or virtiofsd ended
}

// noted tells a note to whoever started the lab.
func (k *keeper) noted(text string) { k.tell(status{Note: text}) }

func (k *keeper) run(s *status) error {
	channel, err := k.boot()
	if err != nil {
		return err
	}
	client, err := k.connect(channel)
	if err != nil {
		return err
	}
	command := "exec " + shellescape.QuoteCommand(k.Argv)
	code, err := k.command(client, command, s)
	if err != nil {
		return err
	}
	s.ExitCode = code
	if k.Report != "" {
		return k.copyReport(client)
	}
	return nil
}

// boot starts virtiofsd and QEMU, and gives this end of the command channel.
func (k *keeper) boot() (net.Conn, error) {
	// An abstract socket and inherited descriptors: nothing of the channels has a name in a file system.
	shareName := "parity-root-" + strconv.Itoa(os.Getpid()) + strconv.FormatInt(k.Started.UnixNano(), 36)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + shareName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	listening, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer listening.Close()
	share := exec.Command("/proc/self/exe", append([]string{reexecShare}, virtiofsdArgs(k.Machine)...)...)
	share.ExtraFiles = []*os.File{listening}
	share.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if err := k.start("virtiofsd", share); err != nil {
		return nil, err
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "channel"), os.NewFile(uintptr(pair[1]), "channel")
	defer ours.Close()
	defer theirs.Close()
	channel, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	initrd, err := memFile("initrd", func(f *os.File) error { return writeInitrd(f, k.job) })
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	qemu := exec.Command(k.Machine.QEMU, qemuArgs(k.job, shareName, misclocked(k.Fault, counterKHz()))...)
	qemu.ExtraFiles = []*os.File{theirs, initrd, os.NewFile(fdScratch, "disk")}
	k.booted = time.Now()
	if err := k.start("QEMU", qemu); err != nil {
		return nil, err
	}
	k.qemu = qemu.Process
	return channel, nil
}

// Descriptors that QEMU inherits.
const (
	qemuChannel = 3
	qemuInitrd  = 4
	qemuDisk    = 5
)

// qemuArgs is QEMU's arguments. counterKHz is the frequency of the machine's time stamp counter, or 0.
func qemuArgs(j *job, shareName string, counterKHz int) []string {
	mem := strconv.Itoa(j.MemoryMiB) + "M"
	// norandmaps: QEMU keeps what it translated of a program by its address. With the same address each
	// time, a program that was run before is not translated again.
	kernel := "console=ttyS0 quiet panic=-1 mitigations=off norandmaps random.trust_cpu=on no_timer_check tsc=reliable 8250.nr_uarts=1"
	if counterKHz > 0 {
		kernel += " tsc_early_khz=" + strconv.Itoa(counterKHz)
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-M", "q35,memory-backend=mem,usb=off,vmport=off,hpet=off", "-accel", "tcg", "-cpu", "max", "-smp", strconv.Itoa(j.CPUs), "-m", mem,
		"-object", "memory-backend-memfd,id=mem,share=on,size=" + mem, // shared with virtiofsd
		"-kernel", j.Machine.Kernel, "-initrd", "/proc/self/fd/" + strconv.Itoa(qemuInitrd),
		"-append", kernel,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=channel,fd=" + strconv.Itoa(qemuChannel),
		"-device", "virtserialport,chardev=channel,name=" + portName,
		"-chardev", "socket,id=root,abstract=on,path=" + shareName,
		"-device", "vhost-user-fs-pci,chardev=root,tag=root,queue-size=1024",
		"-drive", "if=none,id=scratch,format=raw,cache=unsafe,discard=unmap,file=/proc/self/fd/" + strconv.Itoa(qemuDisk),
		"-device", "virtio-blk-pci,drive=scratch",
	}
	if j.UserNet {
		args = append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net")
	}
	return args
}

// virtiofsdArgs is virtiofsd and its arguments; descriptor 3 is the socket on which it listens.
func virtiofsdArgs(m *machine) []string {
	if !m.Rust {
		return []string{m.Virtiofsd, "--fd=3", "-o", "source=/,sandbox=chroot,cache=always,log_level=err,no_posix_lock,no_flock"}
	}
	args := []string{m.Virtiofsd, "--fd=3", "--shared-dir=/", "--sandbox=chroot", "--cache=always", "--log-level=error"}
	// A later one announces this machine's mounts, which become automounts in the emulated one: nothing can be mounted over those.
	const quiet = "--no-announce-submounts"
	if help, err := exec.Command(m.Virtiofsd, "--help").Output(); err == nil && bytes.Contains(help, []byte(quiet)) {
		args = append(args, quiet)
	}
	return args
}

// shareMain makes all mounts of its own mount namespace read-only and becomes virtiofsd, whose arguments it was given: what runs in
// the emulated machine cannot change this machine, whatever it does.
func shareMain() {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if err != nil {
		err = fmt.Errorf("make the shared root read-only: %w (it takes Linux 5.12 or later)", err)
	} else {
		err = unix.Exec(os.Args[2], os.Args[2:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "parity:", err)
	os.Exit(1)
}

func (k *keeper) start(name string, c *exec.Cmd) error {
	c.Stdout, c.Stderr = k.console, k.console
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid = true // the signals of the keeper's group are for the command in the machine
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := c.Wait()
		k.died <- fmt.Errorf("%s ended (%v)", name, c.ProcessState)
		_ = err // how it ended is in the state
	}()
	return nil
}

// connect waits for the machine to boot and to answer on the command channel.
func (k *keeper) connect(channel net.Conn) (*ssh.Client, error) {
	type answer struct {
		client *ssh.Client
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		// The channel is a socket pair with the machine that this process started: there is nobody to mistake it for.
		conn, chans, reqs, err := ssh.NewClientConn(channel, "lab", sshserver.ClientConfig(ssh.InsecureIgnoreHostKey()))
		if err != nil {
			answered <- answer{err: err}
			return
		}
		answered <- answer{client: ssh.NewClient(conn, chans, reqs)}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, fmt.Errorf("the command channel did not come up: %w", a.err)
		}
		return a.client, nil
	case err := <-k.died:
		return nil, fmt.Errorf("%w before the machine was up", err)
	case sig := <-k.signals:
		return nil, fmt.Errorf("ended by %s while the machine booted", sig)
	case <-time.After(time.Until(k.Started.Add(k.BootDeadline))):
		return nil, fmt.Errorf("the machine did not boot within %s", k.BootDeadline)
	}
}

// command runs the lab's command, passes signals on to it and gives its exit code.
func (k *keeper) command(client *ssh.Client, command string, s *status) (int, error) {
	first, err := ask(client, usual, nil, k.noted)
	if err == nil {
		err = sinceBoot(first, k.booted)
	}
	if err != nil {
		return -1, err
	}
	session, err := client.NewSession()
	if err != nil {
		return -1, fmt.Errorf("open a session in the machine: %w", err)
	}
	defer session.Close()
	session.Stdout, session.Stderr = os.Stdout, os.Stderr
	stdin, err := session.StdinPipe() // Session.Stdin would make Wait wait for the end of the input
	if err != nil {
		return -1, err
	}
	if err := session.Start(command); err != nil {
		return -1, fmt.Errorf("start the command in the machine: %w", err)
	}
	s.Started, s.Boot = true, time.Since(k.Started)
	go func() {
		_, _ = io.Copy(stdin, os.Stdin)
		stdin.Close()
	}()
	done := make(chan error, 1)
	go func() { done <- session.Wait() }()
	stopped := make(chan struct{})
	defer close(stopped)
	watched := watchHeart(client, usual, stopped, k.noted)
	defer func() { s.Stalls = watched.stalls() }()
	k.misbehave(stopped)
	for {
		select {
		case err := <-watched.failed:
			return -1, err
		case sig := <-k.signals:
			if err := session.Signal(sshSignals[sig]); err != nil {
				return -1, fmt.Errorf("pass %s on: %w", sig, err)
			}
		case err := <-done:
			var exit *ssh.ExitError
			switch {
			case err == nil:
				return 0, nil
			case errors.As(err, &exit) && exit.Signal() != "":
				return 128 + int(unix.SignalNum("SIG"+exit.Signal())), nil
			case errors.As(err, &exit):
				return exit.ExitStatus(), nil
			}
			return -1, fmt.Errorf("the machine went away under the command: %w", err)
		}
	}
}

var sshSignals = map[os.Signal]ssh.Signal{
	syscall.SIGINT: ssh.SIGINT, syscall.SIGTERM: ssh.SIGTERM, syscall.SIGHUP: ssh.SIGHUP, syscall.SIGQUIT: ssh.SIGQUIT,
}

// reportDeadline bounds the copying of a report folder out of the machine.
const reportDeadline = 2 * time.Minute

// copyReport copies the report folder out of the machine, if the command made one.
func (k *keeper) copyReport(client *ssh.Client) error {
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("copy the report out: %w", err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), reportDeadline)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	var errs bytes.Buffer
	session.Stderr = &errs
	out, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	dir := shellescape.Quote(k.Report)
	if err := session.Start("test ! -d " + dir + " || exec tar -C " + dir + " -cf - ."); err != nil {
		return fmt.Errorf("copy the report out: %w", err)
	}
	err = extract(out, k.Report)
	_, _ = io.Copy(io.Discard, out)
	if waitErr := session.Wait(); waitErr != nil {
		err = errors.Join(err, waitErr)
	}
	if err != nil {
		return fmt.Errorf("copy the report %s out: %w %s", k.Report, err, strings.TrimSpace(errs.String()))
	}
	return nil
}

// explain gives an error with the console's last lines.
func (k *keeper) explain(err error) string {
	select {
	case died := <-k.died:
		err = fmt.Errorf("%w; %w", err, died)
	case <-time.After(200 * time.Millisecond): // a machine that went away is reaped a moment later
	}
	if tail := k.console.tail(); tail != "" {
		return err.Error() + "; the console's last lines:\n    " + strings.ReplaceAll(tail, "\n", "\n    ")
	}
	return err.Error() + "; the console is empty"
}

// console keeps the end of what the machine, QEMU and virtiofsd print.
type console struct {
	mu  sync.Mutex
	buf []byte
}

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = append(c.buf, b...)
	if over := len(c.buf) - 16<<10; over > 0 {
		c.buf = bytes.Clone(c.buf[over:])
	}
	return len(b), nil
}

func (c *console) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(c.buf), "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}
