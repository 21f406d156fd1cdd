// Package lab runs a command where KVM works and where nothing of the host is touched: natively, in fresh namespaces of this
// machine, or emulated, inside a QEMU machine whose root is this machine's own, read-only, under an overlay. Either way the
// command gets its standard streams, its exit code and its signals, and ending the lab ends everything in it.
//
// The package re-executes the running program. Its main function, or a test's TestMain, must call [Reexec] first.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
)

// KVM says where a lab's KVM comes from.
type KVM string

// The kinds of KVM.
const (
	Auto     KVM = "auto"     // native where it is seen to work, else emulated
	Native   KVM = "native"   // this machine's
	Emulated KVM = "emulated" // QEMU's emulation of AMD SVM
)

// ParseKVM gives the KVM that s names, or an error that lists the names.
func ParseKVM(s string) (KVM, error) {
	switch k := KVM(s); k {
	case Auto, Native, Emulated:
		return k, nil
	}
	return "", fmt.Errorf("--kvm %q: expected auto, native or emulated", s)
}

// Options describe one lab and the command that runs in it.
type Options struct {
	KVM  KVM      // Native or Emulated; Auto must have been decided by Decide
	Argv []string // the command; looked up in PATH inside the lab
	Env  []string // the command's whole environment; the lab adds PARITY_LAB, PARITY_SCRATCH and TMPDIR
	Dir  string   // its working folder, an absolute path

	Stdin          io.Reader `json:"-"` // nil means no input
	Stdout, Stderr io.Writer `json:"-"` // nil means discarded; may be one writer, then its writes do not overlap

	Report string // folder, absolute: what the command wrote there is on this machine afterwards; empty for none

	Notes func(string) `json:"-"` // is told what is noticed about the machine while the command runs; may be nil

	CPUs      int    // of the emulated machine; 0 means 1, the only number without faults (docs/lab.md)
	MemoryMiB int    // of the emulated machine; 0 means 4096
	DiskGiB   int    // of the scratch disk (emulated); 0 means 16; it is sparse
	UserNet   bool   // give the emulated machine QEMU's user-mode network
	Cache     string // Parity's cache folder, with the kernel for the emulated machine

	BootDeadline time.Duration // from the start to the command's start; 0 means 3 minutes
	Grace        time.Duration // from a cancelled context or a signal to the lab's end; 0 means 20 seconds

	Fault fault.Fault // by which the lab is to fail, if it is one of a lab's; only an emulated one can
}

// The least that an emulated machine is made with. It is the sum of what one must hold at once, not a measured edge: 512 MiB for one
// microVM as large as the reference CLI makes it, and as much again for the machine's kernel, its unpacked initrd, the command,
// and msb with its library (70 MB of files). A disk of 1 GiB holds MicroSandbox's store with a small image and that microVM's own disk.
const (
	MinMemoryMiB = 1024
	MinDiskGiB   = 1
)

// Result is what came of a lab.
type Result struct {
	ExitCode int           // the command's, or 128 + the signal that ended it
	Boot     time.Duration // from the call to the command's start
	Removed  string        // what the lab's end removed from this machine, in words

	// Stalls is how often no interrupt of the emulated machine's timer came between two messages of
	// the heartbeat: the machine stood still, or this one gave it no time.
	Stalls int
}

// Environment variables that a command finds in a lab.
const (
	EnvLab     = "PARITY_LAB"     // native or emulated
	EnvScratch = "PARITY_SCRATCH" // an empty folder on a file system with user xattrs; it goes with the lab
)

// ErrBoot is the cause of every error about a lab that did not get as far as starting the command.
var ErrBoot = errors.New("the lab did not start")

// Lab is a started lab.
type Lab struct {
	opts    Options
	started time.Time
	process *os.Process
	control *os.File // the job, then the numbers of signals, as JSON
	status  *os.File
	scratch *scratch
	told    chan struct{} // closed once the box has told all
	said    status        // its last word
	saidErr error         // why there is none
	done    chan struct{}
	result  Result
	err     error

	mu       sync.Mutex
	signaled bool
}

// Run starts a lab and waits for it. The command's exit code is in the Result and is not an error: an error says that the lab
// itself failed, or that ctx ended it.
func Run(ctx context.Context, o Options) (Result, error) {
	l, err := Start(ctx, o)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	return l.Wait()
}

// Start starts a lab. When ctx is done the command gets SIGTERM; Options.Grace later the lab is ended with all that runs in it.
// If this process dies, the lab dies with it.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.KVM != Native && o.KVM != Emulated {
		return nil, fmt.Errorf("lab: KVM %q is not decided", o.KVM)
	}
	if len(o.Argv) == 0 {
		return nil, errors.New("lab: no command given")
	}
	o.CPUs, o.MemoryMiB, o.DiskGiB = or(o.CPUs, 1), or(o.MemoryMiB, 4096), or(o.DiskGiB, 16)
	o.BootDeadline, o.Grace = or(o.BootDeadline, 3*time.Minute), or(o.Grace, 20*time.Second)
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root to make namespaces and mounts, and this is user %d: run it as root", ErrBoot, os.Geteuid())
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBoot, err)
	}
	job := job{Options: &o, Self: self, Started: time.Now()}
	if o.KVM == Emulated {
		if job.Machine, err = findMachine(o.Cache); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBoot, err)
		}
	}
	l := &Lab{opts: o, started: job.Started, told: make(chan struct{}), done: make(chan struct{})}
	if l.scratch, err = newScratch(o); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBoot, err)
	}
	job.Scratch = l.scratch.path()
	if err := l.start(job); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBoot, errors.Join(err, l.scratch.remove()))
	}
	go l.watch(ctx)
	return l, nil
}

// Signal sends sig to the command. If the command has not ended Options.Grace later, the lab is ended; a second signal ends it at
// once.
func (l *Lab) Signal(sig syscall.Signal) {
	l.mu.Lock()
	again := l.signaled
	l.signaled = true
	l.mu.Unlock()
	if again {
		_ = l.process.Kill()
		return
	}
	// Not by a real signal: an init loses one that comes before its handler is there. A box that is gone needs none.
	_ = json.NewEncoder(l.control).Encode(int(sig))
	go func() {
		select {
		case <-l.done:
		case <-time.After(l.opts.Grace):
			_ = l.process.Kill()
		}
	}()
}

// Wait waits until the lab and all that ran in it have ended; see Run for what it gives.
func (l *Lab) Wait() (Result, error) {
	<-l.done
	return l.result, l.err
}

func (l *Lab) watch(ctx context.Context) {
	select {
	case <-l.done:
	case <-ctx.Done():
		l.Signal(syscall.SIGTERM)
	}
}

// job is what the box is told, as JSON on a pipe.
type job struct {
	*Options
	Self    string // this program
	Scratch string // native: the scratch folder. Emulated: the scratch disk's file is fd 5
	Machine *machine
	Started time.Time
}

// status is what the box tells, as JSON on a pipe: any number of notes, and then how the lab went.
type status struct {
	Note string // the others are empty then

	ExitCode int
	Boot     time.Duration
	Error    string // the lab failed
	Clock    bool   // it failed by its clock
	Started  bool   // the command was started
	Stalls   int    // see Result
}

// start starts the box: this program again, as the init of fresh namespaces. Ending it ends everything in them, and the kernel
// ends it when the thread that started it dies, which therefore waits for it.
func (l *Lab) start(j job) error {
	config, err := json.Marshal(j)
	if err != nil {
		return err
	}
	configR, configW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer configR.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		configW.Close()
		return err
	}
	defer statusW.Close()
	l.control, l.status = configW, statusR
	go l.listen()

	stdin, closeStdin, err := inputFile(l.opts.Stdin)
	if err != nil {
		return err
	}
	var copies sync.WaitGroup
	stdout, closeStdout, err := outputFile(l.opts.Stdout, &copies)
	if err != nil {
		return err
	}
	stderr, closeStderr := stdout, func() {}
	if !same(l.opts.Stdout, l.opts.Stderr) {
		if stderr, closeStderr, err = outputFile(l.opts.Stderr, &copies); err != nil {
			return err
		}
	}
	files := []*os.File{stdin, stdout, stderr, configR, statusW}
	if l.scratch.disk != nil {
		files = append(files, l.scratch.disk)
	}
	flags := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS)
	if !l.opts.UserNet {
		flags |= unix.CLONE_NEWNET
	}
	startErr := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about the thread: this one stays until the box has ended
		defer runtime.UnlockOSThread()
		var err error
		l.process, err = os.StartProcess("/proc/self/exe", []string{"parity", reexecBox}, &os.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: files,
			Sys: &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL, Setpgid: true},
		})
		for _, c := range []func(){closeStdin, closeStdout, closeStderr} {
			c()
		}
		if err == nil && l.scratch.folder != nil {
			// The box does nothing before it has its configuration. Without it, it ends.
			if err = l.scratch.folder.UsedBy(l.process.Pid); err != nil {
				_ = l.process.Kill()
				_, _ = l.process.Wait()
			}
		}
		startErr <- err
		if err != nil {
			return
		}
		state, err := l.process.Wait()
		copies.Wait()
		l.finish(state, err)
	}()
	if err := <-startErr; err != nil {
		configW.Close()
		statusR.Close()
		return fmt.Errorf("make the lab's namespaces: %w (a container needs to be privileged)", err)
	}
	if _, err = configW.Write(config); err != nil {
		_ = l.process.Kill()
		<-l.done
	}
	return err
}

// listen takes what the box tells. What the box started holds the pipe open too, and ends with it.
func (l *Lab) listen() {
	defer close(l.told)
	for words := json.NewDecoder(l.status); ; {
		var s status
		if err := words.Decode(&s); err != nil {
			l.saidErr = err
			return
		}
		if s.Note == "" {
			l.said = s
			return
		}
		if l.opts.Notes != nil {
			l.opts.Notes(s.Note)
		}
	}
}

func (l *Lab) finish(state *os.ProcessState, waitErr error) {
	defer close(l.done)
	defer l.status.Close()
	defer l.control.Close()
	<-l.told
	s, decodeErr := l.said, l.saidErr
	l.result = Result{ExitCode: s.ExitCode, Boot: s.Boot, Stalls: s.Stalls, Removed: "its machine and its disk"}
	removeErr := l.scratch.remove()
	if path := l.scratch.path(); path != "" && removeErr == nil {
		l.result.Removed = "its processes, its namespaces and its folder " + path
	}
	l.mu.Lock()
	signaled := l.signaled
	l.mu.Unlock()
	switch {
	case waitErr != nil:
		l.err = fmt.Errorf("wait for the lab: %w", waitErr)
	case decodeErr != nil && signaled:
		l.err = errors.New("the lab was ended before its command")
	case decodeErr != nil:
		l.err = fmt.Errorf("the lab died (%s) without saying why", state)
	case s.Clock:
		l.err = fmt.Errorf("%w%s", ErrClock, strings.TrimPrefix(s.Error, ErrClock.Error()))
	case s.Error != "" && !s.Started:
		l.err = fmt.Errorf("%w: %s", ErrBoot, s.Error)
	case s.Error != "":
		l.err = errors.New(s.Error)
	}
	if removeErr != nil {
		l.result.Removed = "its processes and its namespaces"
		l.err = errors.Join(l.err, fmt.Errorf("remove the lab's folder: %w; see whether something of the lab's is mounted or immutable there, and run `parity clean`", removeErr))
	}
	if l.err != nil {
		l.result.ExitCode = -1
	}
}

// inputFile gives a file that the box can inherit for r, and what closes it here. A terminal is passed through a pipe: the box is
// in a process group of its own, which may not read from one.
func inputFile(r io.Reader) (*os.File, func(), error) {
	if r == nil {
		f, err := os.Open(os.DevNull)
		return f, func() { f.Close() }, err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		_, _ = io.Copy(pw, r) // ends with r, or when the box is gone
		pw.Close()
	}()
	return pr, func() { pr.Close() }, nil
}

func outputFile(w io.Writer, copies *sync.WaitGroup) (*os.File, func(), error) {
	if f, ok := w.(*os.File); ok {
		return f, func() {}, nil
	}
	if w == nil {
		f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		return f, func() { f.Close() }, err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	copies.Go(func() {
		_, _ = io.Copy(w, pr)
		pr.Close()
	})
	return pw, func() { pw.Close() }, nil
}

// same tells whether two writers are one.
func same(a, b io.Writer) bool {
	defer func() { _ = recover() }() // of types that do not compare: they are not
	return a == b
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// CacheDir is Parity's cache folder: $PARITY_CACHE, else parity below $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	dir := os.Getenv("PARITY_CACHE")
	if dir == "" {
		own, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder: %w: set PARITY_CACHE to one", err)
		}
		dir = filepath.Join(own, "parity")
	}
	if strings.Contains(dir, ":") { // programs in it are found by PATH
		return "", fmt.Errorf("the cache folder %q: a colon is in its path, which divides folders in PATH: set PARITY_CACHE to another one", dir)
	}
	return filepath.Abs(dir)
}
