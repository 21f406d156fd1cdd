package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
)

// machine is what an emulated lab is made of.
type machine struct {
	QEMU      string // qemu-system-x86_64
	Virtiofsd string
	Rust      bool   // virtiofsd is the one in Rust (Debian 13), with options of its own; else QEMU's (Debian 12)
	Busybox   string // a static one
	Kernel    string // vmlinuz
	Modules   string // the folder with the kernel's modules
}

// Prerequisite is one thing that a lab needs, and whether it is there.
type Prerequisite struct {
	Name   string
	Found  string // where, or empty
	Next   string // what to do when it is missing
	Cached bool   // it is in Parity's cache folder, which each user has one of
}

// MachinePrerequisites lists what an emulated lab needs of this machine, with Parity's cache folder.
func MachinePrerequisites(cache string) []Prerequisite {
	_, list := probeMachine(cache)
	return list
}

// KernelDir is where setup puts the emulated machine's kernel, extracted from Debian's package.
func KernelDir(cache string) string { return filepath.Join(cache, "kernel") }

func findMachine(cache string) (*machine, error) {
	m, list := probeMachine(cache)
	var missing []error
	for _, p := range list {
		if p.Found == "" {
			missing = append(missing, fmt.Errorf("%s is missing: %s", p.Name, p.Next))
		}
	}
	return &m, errors.Join(missing...)
}

func probeMachine(cache string) (machine, []Prerequisite) {
	var m machine
	m.QEMU = findProgram("qemu-system-x86_64")
	// Debian 13's is in /usr/libexec; Debian 12's is QEMU's own, in /usr/lib/qemu.
	for _, path := range []string{"/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd"} {
		if _, err := os.Stat(path); err == nil {
			m.Virtiofsd, m.Rust = path, path == "/usr/libexec/virtiofsd"
			break
		}
	}
	m.Busybox = findProgram("busybox")
	kernels, _ := filepath.Glob(filepath.Join(KernelDir(cache), "*", "boot", "vmlinuz-*"))
	sort.Strings(kernels)
	for _, k := range kernels { // the last one whose modules are there too
		release := filepath.Base(k)[len("vmlinuz-"):]
		root := filepath.Dir(filepath.Dir(k))
		for _, lib := range []string{"lib", "usr/lib"} {
			modules := filepath.Join(root, lib, "modules", release, "kernel")
			if _, err := os.Stat(modules); err == nil {
				m.Kernel, m.Modules = k, modules
			}
		}
	}
	arch := ""
	if runtime.GOARCH == "amd64" {
		arch = "amd64"
	}
	return m, []Prerequisite{
		{Name: "amd64 machine", Found: arch, Next: "the emulated machine is an amd64 one with emulated AMD SVM"},
		{Name: "qemu-system-x86_64", Found: m.QEMU, Next: "install Debian package qemu-system-x86"},
		{Name: "virtiofsd", Found: m.Virtiofsd, Next: "install Debian package qemu-system-common (Debian 12) or virtiofsd (Debian 13)"},
		{Name: "busybox", Found: m.Busybox, Next: "install Debian package busybox-static"},
		{Name: "mkfs.ext4", Found: findProgram("mkfs.ext4"), Next: "install Debian package e2fsprogs"},
		{
			Name: "kernel for the emulated machine", Found: m.Kernel, Cached: true,
			Next: "run scripts/setup: it extracts Debian's linux-image-cloud-amd64 into " + KernelDir(cache),
		},
	}
}
