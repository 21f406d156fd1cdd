package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The ways in which this program is run again.
const (
	reexecBox     = "lab-box"     // the init of the lab's namespaces, on this machine
	reexecEmulate = "lab-emulate" // beside QEMU, in those namespaces
	reexecShare   = "lab-share"   // becomes virtiofsd, in a mount namespace that is read-only
	reexecInit    = "lab-init"    // the init of the emulated machine
	reexecServe   = "lab-serve"   // its command channel
)

// Reexec runs the part of the lab that this process was re-executed for, and does not return then. It must be called before
// anything else in main.
func Reexec() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case reexecBox:
		boxMain()
	case reexecEmulate:
		emulateMain()
	case reexecShare:
		shareMain()
	case reexecInit:
		guestInit()
	case reexecServe:
		guestServe()
	}
}

const (
	fdConfig  = 3
	fdStatus  = 4
	fdScratch = 5
)

// boxMain is the init of the lab's namespaces. It prepares them, starts the one child that the lab is for, passes signals on to
// it, reaps what is orphaned, and ends with it.
func boxMain() {
	config, out := json.NewDecoder(os.NewFile(fdConfig, "config")), os.NewFile(fdStatus, "status")
	signals := make(chan os.Signal, 8)
	var s status
	var j job
	err := config.Decode(&j)
	go func() {
		var number int
		for config.Decode(&number) == nil {
			signals <- syscall.Signal(number)
		}
	}()
	if err != nil {
		s.Error = fmt.Sprintf("read the lab's configuration: %v", err)
	} else if err := prepareBox(&j); err != nil {
		s.Error = err.Error()
	} else if j.KVM == Native {
		s = runNative(&j, signals)
	} else if err := runEmulated(&j, signals); err == nil {
		os.Exit(0) // the child has written the status
	} else {
		s.Error = err.Error()
	}
	_ = json.NewEncoder(out).Encode(s)
	os.Exit(0)
}

func prepareBox(j *job) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the lab's mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount the lab's /proc: %w", err)
	}
	if err := unix.Sethostname([]byte("parity")); err != nil {
		return fmt.Errorf("name the lab's host: %w", err)
	}
	if j.UserNet {
		return nil
	}
	return upLoopback()
}

func upLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring up the loopback interface: %w", err)
	}
	return nil
}

func runNative(j *job, signals <-chan os.Signal) status {
	env := labEnv(j.Env, Native, j.Scratch)
	tmp := filepath.Join(j.Scratch, "tmp")
	if err := os.Mkdir(tmp, 0o1777); err != nil {
		return status{Error: err.Error()}
	}
	path, err := lookPath(j.Argv[0], j.Dir, env)
	if err != nil {
		return status{Error: err.Error()}
	}
	code, err := runChild(path, j.Argv, env, j.Dir, []*os.File{os.Stdin, os.Stdout, os.Stderr}, signals)
	if err != nil {
		return status{Error: fmt.Sprintf("start %s: %v", j.Argv[0], err)}
	}
	return status{ExitCode: code.exit, Boot: code.started.Sub(j.Started), Started: true}
}

func runEmulated(j *job, signals <-chan os.Signal) error {
	config, err := memFile("job", func(f *os.File) error { return json.NewEncoder(f).Encode(j) })
	if err != nil {
		return err
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, config, os.NewFile(fdStatus, "status"), os.NewFile(fdScratch, "disk")}
	ended, err := runChild("/proc/self/exe", []string{"parity", reexecEmulate}, os.Environ(), "/", files, signals)
	if err == nil && ended.exit != 0 {
		err = fmt.Errorf("the emulated lab's keeper ended with code %d", ended.exit)
	}
	return err
}

// ended says how the box's child ended.
type ended struct {
	exit    int
	started time.Time
}

// runChild starts a child, passes signals on to it and reaps every process of the namespace until the child has ended.
func runChild(path string, argv, env []string, dir string, files []*os.File, signals <-chan os.Signal) (ended, error) {
	child, err := os.StartProcess(path, argv, &os.ProcAttr{Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return ended{}, err
	}
	started := time.Now()
	go func() {
		for s := range signals {
			_ = syscall.Kill(-child.Pid, s.(syscall.Signal))
		}
	}()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return ended{}, fmt.Errorf("wait for the child: %w", err)
		}
		if pid != child.Pid || !(ws.Exited() || ws.Signaled()) {
			continue
		}
		if ws.Signaled() {
			return ended{exit: 128 + int(ws.Signal()), started: started}, nil
		}
		return ended{exit: ws.ExitStatus(), started: started}, nil
	}
}

// labEnv is the environment of a command in a lab: env with the lab's own entries, in place of those of a lab around it.
func labEnv(env []string, kvm KVM, scratch string) []string {
	own := []string{EnvLab + "=" + string(kvm), EnvScratch + "=" + scratch, "TMPDIR=" + filepath.Join(scratch, "tmp")}
	inherited := slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(o, key+"=") })
	})
	return append(inherited, own...)
}

// lookPath finds a program as a shell in dir with env would.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) {
			return name, nil
		}
		return filepath.Join(dir, name), nil
	}
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	return exec.LookPath(name)
}

// memFile gives a file in memory, written by write and read from its start.
func memFile(name string, write func(*os.File) error) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = write(f); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// findProgram finds a program in PATH or in the system's own folders, which root's PATH may lack; "" when there is none.
func findProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/lib/qemu", "/usr/libexec"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
