package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/cavaliergopher/cpio"
)

// bootModules are what the emulated machine needs to reach its root and to talk to its keeper.
var bootModules = []string{"virtio_pci", "virtio_console", "virtio_blk", "virtiofs", "overlay", "ext4"}

// labModules are what is loaded once the root is there: KVM, and what the egress fixtures need.
var labModules = []string{"kvm-amd", "tun", "dummy"}

// onDemand are what LoadModules can load: what a Docker Engine needs, and what the stand-in for msb
// does, for the rules of its guests' networks.
var onDemand = []string{
	"bridge", "veth",
	"nf_tables", "nft_chain_nat", "nft_redir", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6",
}

// guestConfig is what the emulated machine is told, as a file in its initrd.
type guestConfig struct {
	Env      []string
	Dir      string
	Modules  []string            // paths of kernel modules, in the order in which they load
	OnDemand map[string][]string // likewise, of each module that is loaded once it is asked for
	UserNet  bool                // there is QEMU's user-mode network
}

// Where things are in the emulated machine.
const (
	guestRun     = "/run/parity" // the scratch disk
	guestScratch = guestRun + "/scratch"
	guestConf    = guestRun + "/lab.json"
	portName     = "parity.command" // the virtio-serial port of the command channel
)

// writeInitrd writes the initial file system of the emulated machine: a static busybox, the kernel modules it boots with, and a
// script that makes this machine's root, read-only through virtiofs, the lower layer of an overlay, and goes there.
func writeInitrd(w io.Writer, j *job) error {
	mods, err := openModules(j.Machine.Modules)
	if err != nil {
		return err
	}
	boot, err := mods.resolve(bootModules...)
	if err != nil {
		return err
	}
	own := labModules
	if j.UserNet {
		own = append(slices.Clone(own), "virtio_net")
	}
	later, err := mods.resolve(own...)
	if err != nil {
		return err
	}
	asked := map[string][]string{}
	for _, name := range onDemand {
		if asked[name], err = mods.resolve(name); err != nil {
			return err
		}
	}
	config, err := json.Marshal(guestConfig{Env: labEnv(j.Env, Emulated, guestScratch), Dir: j.Dir, Modules: later, OnDemand: asked, UserNet: j.UserNet})
	if err != nil {
		return err
	}
	a := archive{w: cpio.NewWriter(w)}
	for _, dir := range []string{"bin", "dev", "proc", "sys", "lower", "scratch", "root", "modules"} {
		a.add(dir, cpio.TypeDir|0o755, nil)
	}
	a.copy("bin/busybox", 0o755, j.Machine.Busybox)
	a.add("lab.json", cpio.TypeReg|0o600, config)
	var load strings.Builder
	for i, path := range boot {
		name := fmt.Sprintf("modules/%02d-%s", i, filepath.Base(path))
		a.copy(name, 0o644, path)
		fmt.Fprintf(&load, "insmod /%s || die 'load %s'\n", name, filepath.Base(path))
	}
	a.add("init", cpio.TypeReg|0o755, fmt.Appendf(nil, initScript, load.String(), guestRun, shellescape.Quote(j.Self), reexecInit))
	return a.close()
}

// initScript's arguments: the lines that load modules, the mount point of the scratch disk, this program, its init's name. The
// overlay's upper layer is on the scratch disk, not on a tmpfs: MicroSandbox needs user xattrs in /tmp too.
const initScript = `#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
die() { echo "parity: the emulated machine could not $1"; exec poweroff -f; }
mount -t devtmpfs dev /dev && mount -t proc proc /proc && mount -t sysfs sys /sys || die 'mount /dev, /proc and /sys'
%s
mount -t virtiofs -o ro root /lower || die 'mount the root through virtiofs'
mount -t ext4 -o nobarrier /dev/vda /scratch || die 'mount the scratch disk'
mkdir -p -m 0755 /scratch/upper%[2]s /scratch/work /scratch/scratch && mkdir -m 1777 /scratch/scratch/tmp && cp /lab.json /scratch/
mount -t overlay -o lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work overlay /root || die 'mount the overlay'
for d in dev proc sys; do mount --move /$d /root/$d || die "move /$d"; done
mount --move /scratch /root%[2]s || die 'move the scratch disk'
exec switch_root /root %[3]s %[4]s
`

// archive writes a cpio archive and keeps its first error.
type archive struct {
	w   *cpio.Writer
	err error
}

func (a *archive) add(name string, mode cpio.FileMode, content []byte) {
	if a.err == nil {
		a.err = a.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(content)), Links: 1})
	}
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
}

func (a *archive) copy(name string, perm cpio.FileMode, path string) {
	if a.err != nil {
		return
	}
	content, err := os.ReadFile(path)
	if err != nil {
		a.err = err
		return
	}
	a.add(name, cpio.TypeReg|perm, content)
}

func (a *archive) close() error {
	if err := a.w.Close(); a.err == nil {
		a.err = err
	}
	if a.err != nil {
		return fmt.Errorf("write the emulated machine's initrd: %w", a.err)
	}
	return nil
}
