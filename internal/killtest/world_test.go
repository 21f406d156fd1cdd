package killtest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kinds of things that a run could leave.
const (
	processes  = "process"
	mounts     = "mount"
	interfaces = "interface"
	namespaces = "namespace"
	rules      = "nftables rule"
	sockets    = "socket"
	files      = "file or folder"
)

// state is what there is on this machine, as far as this process's namespaces show it: of each thing its kind and what names it.
type state map[string]bool

func (s state) add(kind, format string, args ...any) {
	s[kind+": "+fmt.Sprintf(format, args...)] = true
}

// diff lists what is in one state and not in the other: "+" came, "-" went or was changed.
func diff(before, after state) []string {
	var list []string
	for thing := range after {
		if !before[thing] {
			list = append(list, "+ "+thing)
		}
	}
	for thing := range before {
		if !after[thing] {
			list = append(list, "- "+thing)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i][2:] < list[j][2:] })
	return list
}

// look gives the state of this machine, with the files and folders below the roots. Of the files that volatile names only the
// name counts.
func look(t *testing.T, roots []string, volatile, ignored func(path string) bool) state {
	t.Helper()
	s := state{}
	for _, see := range []func() error{
		s.seeProcesses, s.seeMounts, s.seeNetwork, s.seeRules, s.seeSockets,
		func() error { return s.seeFiles(roots, volatile, ignored) },
	} {
		if err := see(); err != nil {
			t.Fatalf("look at the machine: %v", err)
		}
	}
	return s
}

// seeProcesses sees the processes of this PID namespace and those below it, and the namespaces that they are in.
func (s state) seeProcesses() error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		line, lineErr := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, statErr := os.ReadFile(filepath.Join(dir, "stat"))
		if lineErr != nil || statErr != nil {
			continue // it has just ended
		}
		if isKernelThread(stat) {
			continue
		}
		if len(line) == 0 { // a zombie has none
			line = stat[:min(len(stat), 40)]
		}
		s.add(processes, "%s %s", filepath.Base(dir), bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte(" ")))
		links, err := os.ReadDir(filepath.Join(dir, "ns"))
		if err != nil {
			continue
		}
		for _, l := range links {
			if target, err := os.Readlink(filepath.Join(dir, "ns", l.Name())); err == nil {
				s.add(namespaces, "%s", target)
			}
		}
	}
	return nil
}

// isKernelThread tells by /proc/PID/stat whether a process is one of the kernel's own threads, which come and go as it sees fit.
func isKernelThread(stat []byte) bool {
	const flag = 0x00200000 // PF_KTHREAD
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	return err == nil && flags&flag != 0
}

func (s state) seeMounts() error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(info)) {
		s.add(mounts, "%s", strings.TrimSpace(line))
	}
	return err
}

func (s state) seeNetwork() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		s.add(interfaces, "%s %s %d", l.Type(), l.Attrs().Name, l.Attrs().Index)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		s.add(interfaces, "address %s of %d", a.IPNet, a.LinkIndex)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	for _, r := range routes {
		s.add(interfaces, "route %s", r)
	}
	return err
}

func (s state) seeRules() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := c.ListTables()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // a kernel without them
	}
	if err != nil {
		return err
	}
	for _, table := range tables {
		s.add(rules, "table %s", table.Name)
	}
	chains, err := c.ListChains()
	if err != nil {
		return err
	}
	for _, chain := range chains {
		list, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return err
		}
		s.add(rules, "chain %s %s with %d rules", chain.Table.Name, chain.Name, len(list))
	}
	return nil
}

// seeSockets sees the sockets of this network namespace: local ones with a name, and those that listen for or have TCP or UDP.
func (s state) seeSockets() error {
	for _, file := range []string{"unix", "tcp", "tcp6", "udp", "udp6", "packet"} {
		table, err := os.ReadFile("/proc/self/net/" + file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without that protocol
		}
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(table), "\n") {
			fields := strings.Fields(line)
			switch {
			case i == 0 || len(fields) < 4:
			case file != "unix":
				s.add(sockets, "%s %s", file, strings.Join(fields[1:4], " "))
			case len(fields) > 7:
				s.add(sockets, "unix %s", fields[7])
			}
		}
	}
	return nil
}

func (s state) seeFiles(roots []string, volatile, ignored func(string) bool) error {
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !ignored(path) {
				err = s.seeFile(path, d, volatile)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it has just gone
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s state) seeFile(path string, d fs.DirEntry, volatile func(string) bool) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s %s", path, info.Mode())
	switch {
	case volatile(path):
	case info.Mode().IsRegular():
		sum := "large"
		if info.Size() < 1<<20 {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		text += fmt.Sprintf(" %d bytes, changed at %s, %s", info.Size(), info.ModTime().Format(time.RFC3339Nano), sum)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		text += " to " + target
	}
	s.add(files, "%s", text)
	return nil
}

// kindsOf lists the kinds of things that a difference has.
func kindsOf(list []string) []string {
	var kinds []string
	for _, line := range list {
		kind, _, _ := strings.Cut(line[2:], ":")
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// settleDeadline bounds how long what a killed run had may take to be gone. It takes milliseconds.
const settleDeadline = 30 * time.Second

// unchanged waits until this machine is as it was before, and fails the test if that does not come.
func (w *world) unchanged(t *testing.T, before state) {
	t.Helper()
	var list []string
	for deadline := time.Now().Add(settleDeadline); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if list = diff(before, w.look(t)); len(list) == 0 {
			return
		}
	}
	t.Errorf("this machine is not as it was before:\n    %s", strings.Join(list, "\n    "))
}
