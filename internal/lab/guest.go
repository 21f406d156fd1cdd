package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/sshserver"
)

// guestInit is process 1 of the emulated machine: it sets the machine up, starts the command channel, reaps, and powers off.
func guestInit() {
	err := prepareGuest()
	if err == nil {
		var e ended
		e, err = runChild("/proc/self/exe", []string{"parity", reexecServe}, os.Environ(), "/", []*os.File{os.Stdin, os.Stdout, os.Stderr}, nil)
		if err == nil && e.exit != 0 {
			err = fmt.Errorf("the command channel ended with code %d", e.exit)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "parity: the emulated machine:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1)
}

func readGuestConfig() (c guestConfig, err error) {
	data, err := os.ReadFile(guestConf)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	return c, err
}

func prepareGuest() error {
	c, err := readGuestConfig()
	if err != nil {
		return err
	}
	for _, m := range []struct{ path, kind, data string }{
		{"/dev/pts", "devpts", "ptmxmode=0666"},
		{"/dev/shm", "tmpfs", "mode=1777"},
		{"/sys/fs/cgroup", "cgroup2", ""},
	} {
		if err := os.MkdirAll(m.path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.path, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	if err := unix.Sethostname([]byte("parity")); err != nil {
		return err
	}
	for _, path := range c.Modules {
		if err := loadModule(path); err != nil {
			return err
		}
	}
	if err := upLoopback(); err != nil || !c.UserNet {
		return err
	}
	if err := upUserNet(); err != nil {
		return fmt.Errorf("set up QEMU's user-mode network: %w", err)
	}
	return nil
}

// upUserNet sets up the one device of QEMU's user-mode network, with the addresses that QEMU gives it unless it is told otherwise.
func upUserNet() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Type() == "device" && l.Attrs().Flags&net.FlagLoopback == 0 })
	if i < 0 {
		return errors.New("there is no network device")
	}
	address := netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 2, 15), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(links[i], &address); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(links[i]); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: links[i].Attrs().Index, Gw: net.IPv4(10, 0, 2, 2)}); err != nil {
		return err
	}
	// This machine's own may name a server on a loopback of its own. It may be a link that leads nowhere, too.
	const resolver = "/etc/resolv.conf"
	if err := os.Remove(resolver); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(resolver, []byte("nameserver 10.0.2.3\n"), 0o644)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	params := ""
	if filepath.Base(path) == "dummy.ko" {
		params = "numdummies=0" // else it makes an interface of its own
	}
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load kernel module %s: %w", filepath.Base(path), err)
	}
	return nil
}

// LoadModules loads kernel modules that a lab does not have from its start, with what they need, for a command in the lab: those
// of onDemand. A native lab has the kernel of its machine, which sees to its modules itself.
func LoadModules(names ...string) error {
	c, err := readGuestConfig()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // this is no emulated machine
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		paths, ok := c.OnDemand[name]
		if !ok {
			return fmt.Errorf("the emulated machine has no kernel module %s to load", name)
		}
		for _, path := range paths {
			if err := loadModule(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// guestServe serves the command channel on the virtio-serial port until its other end hangs up.
func guestServe() {
	c, err := readGuestConfig()
	if err == nil {
		var port *os.File
		if port, err = openPort(portName); err == nil {
			go tick()
			err = sshserver.Serve(context.Background(), port, sshserver.Options{Env: c.Env, Dir: c.Dir, Global: answerPulse})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "parity: the command channel:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// openPort opens the virtio-serial port of the given name; it can take a moment to appear.
func openPort(name string) (*os.File, error) {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ports, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, p := range ports {
			if got, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(got)) == name {
				return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(p))), os.O_RDWR, 0)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("virtio-serial port %s did not appear in 20 s", name)
		}
	}
}
