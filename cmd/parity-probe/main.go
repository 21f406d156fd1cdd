// Parity-probe is the program that a case copies into a guest, and runs on the host and in the control VM too. Each command prints
// one JSON line on standard output (package probe documents the fields):
//
//	parity-probe --version
//	parity-probe tcp --address IP:PORT --nonce NONCE [--timeout 20s]
//	parity-probe sweep --nonce NONCE [--timeout 20s] [--silence 2s] --try NAME=KIND:IP:PORT...
//	parity-probe boot-id
//	parity-probe marker write PATH VALUE
//	parity-probe marker read PATH
//	parity-probe tree [--below PATH]...
//	parity-probe file PATH
//	parity-probe machines [--env KEY=VALUE]
//	parity-probe running PATH
//
// It exits with 0 when it could report, whatever the outcome, with 1 when it could not, and with 2 on bad usage.
package main

import (
	"errors"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"dagger/parity/internal/probe"
	"dagger/parity/internal/tree"
)

// version is set at link time: -ldflags '-X main.version=...'.
var version = "dev"

const usage = `usage: parity-probe --version
       parity-probe tcp --address IP:PORT --nonce NONCE [--timeout 20s]
       parity-probe sweep --nonce NONCE [--timeout 20s] [--silence 2s] --try NAME=KIND:IP:PORT...
       parity-probe boot-id
       parity-probe marker write PATH VALUE
       parity-probe marker read PATH
       parity-probe tree [--below PATH]...
       parity-probe file PATH
       parity-probe machines [--env KEY=VALUE]
       parity-probe running PATH
`

// usageError is what the caller did wrong.
type usageError string

func (e usageError) Error() string { return string(e) }

func main() {
	line, err := run(os.Args[1:])
	if err == nil {
		_, err = os.Stdout.Write(line)
	}
	if err == nil {
		return
	}
	_, _ = os.Stderr.WriteString(probe.Program + ": " + err.Error() + "\n")
	if _, bad := errors.AsType[usageError](err); bad {
		_, _ = os.Stderr.WriteString(usage)
		os.Exit(2)
	}
	os.Exit(1)
}

func run(args []string) ([]byte, error) {
	switch {
	case len(args) == 1 && args[0] == "--version":
		return probe.Version{Program: probe.Program, Version: version, Arch: runtime.GOARCH}.Line(), nil
	case len(args) > 0 && args[0] == "tcp":
		return tcp(args[1:])
	case len(args) > 0 && args[0] == "sweep":
		return sweep(args[1:])
	case len(args) == 1 && args[0] == "boot-id":
		id, err := probe.ReadBootID()
		return id.Line(), err
	case len(args) == 4 && args[0] == "marker" && args[1] == "write" && path.IsAbs(args[2]):
		m, err := probe.WriteMarker(args[2], args[3])
		return m.Line(), err
	case len(args) == 3 && args[0] == "marker" && args[1] == "read" && path.IsAbs(args[2]):
		m, err := probe.ReadMarker(args[2])
		return m.Line(), err
	case len(args) > 0 && args[0] == "tree":
		return list(args[1:])
	case len(args) == 2 && args[0] == "file" && path.IsAbs(args[1]):
		f, err := probe.DescribeFile(args[1])
		return f.Line(), err
	case len(args) > 0 && args[0] == "machines":
		return machines(args[1:])
	case len(args) == 2 && args[0] == "running" && path.IsAbs(args[1]):
		p, err := probe.ListRunning(args[1])
		return p.Line(), err
	}
	return nil, usageError("expected one of the commands below, with an absolute PATH; got " + strconv.Quote(strings.Join(args, " ")))
}

// flags calls set with each of a command's flags, given as --name VALUE or --name=VALUE.
func flags(command string, args []string, set func(name, value string) error) error {
	for len(args) > 0 {
		name, value, ok := strings.Cut(args[0], "=")
		if args = args[1:]; !ok {
			if len(args) == 0 {
				return usageError(command + ": expected a value after " + strconv.Quote(name))
			}
			value, args = args[0], args[1:]
		}
		if err := set(name, value); err != nil {
			return usageError(command + ": " + name + ": " + err.Error())
		}
	}
	return nil
}

var errUnknownFlag = errors.New("unknown flag")

func list(args []string) ([]byte, error) {
	var below []string
	err := flags("tree", args, func(name, value string) error {
		switch {
		case name != "--below":
			return errUnknownFlag
		case !path.IsAbs(value):
			return errors.New("expected an absolute path, got " + strconv.Quote(value))
		}
		below = append(below, value)
		return nil
	})
	if err != nil {
		return nil, err
	}
	entries, err := tree.OfFolder("/", below...)
	return probe.Tree{Entries: entries}.Line(), err
}

func machines(args []string) ([]byte, error) {
	environ := ""
	err := flags("machines", args, func(name, value string) error {
		switch {
		case name != "--env":
			return errUnknownFlag
		case !strings.Contains(value, "="):
			return errors.New("expected KEY=VALUE, got " + strconv.Quote(value))
		}
		environ = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	p, err := probe.ListMachines(environ)
	return p.Line(), err
}

func tcp(args []string) ([]byte, error) {
	timeout := 20 * time.Second
	var addr netip.AddrPort
	var nonce string
	err := flags("tcp", args, func(name, value string) (err error) {
		switch name {
		case "--address":
			addr, err = netip.ParseAddrPort(value)
		case "--nonce":
			nonce = value
		case "--timeout":
			timeout, err = time.ParseDuration(value)
		default:
			err = errUnknownFlag
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !addr.IsValid() || addr.Port() == 0 || addr.Addr().Zone() != "":
		return nil, usageError("tcp: --address must be a literal IP:PORT, without a zone")
	case !fitNonce(nonce):
		return nil, usageError("tcp: --nonce must be 1 to 128 letters, digits, '-', '_' or '.'; got " + strconv.Quote(nonce))
	case timeout <= 0:
		return nil, usageError("tcp: --timeout must be above 0")
	}
	return probe.DialTCP(addr, nonce, timeout).Line(), nil
}

func sweep(args []string) ([]byte, error) {
	timeout, silence := 20*time.Second, 2*time.Second
	var targets []probe.Target
	var nonce string
	err := flags("sweep", args, func(name, value string) (err error) {
		switch name {
		case "--nonce":
			nonce = value
		case "--timeout":
			timeout, err = time.ParseDuration(value)
		case "--silence":
			silence, err = time.ParseDuration(value)
		case "--try":
			var t probe.Target
			t, err = parseTarget(value)
			targets = append(targets, t)
		default:
			err = errUnknownFlag
		}
		return err
	})
	const longestLabel = 63 // of a DNS name
	switch {
	case err != nil:
		return nil, err
	case !fitNonce(nonce) || len(nonce) > longestLabel || strings.Contains(nonce, "."):
		return nil, usageError("sweep: --nonce must be 1 to 63 letters, digits, '-' or '_'; got " + strconv.Quote(nonce))
	case timeout <= 0 || silence <= 0:
		return nil, usageError("sweep: --timeout and --silence must be above 0")
	}
	return probe.RunSweep(targets, nonce, timeout, silence).Line(), nil
}

// parseTarget reads NAME=KIND:IP:PORT, where the word resolver can stand for the IP.
func parseTarget(value string) (t probe.Target, err error) {
	name, to, _ := strings.Cut(value, "=")
	kind, addr, _ := strings.Cut(to, ":")
	t.Name, t.Kind = name, probe.Kind(kind)
	if port, ok := strings.CutPrefix(addr, probe.Resolver+":"); ok {
		t.AtResolver, addr = true, "0.0.0.0:"+port
	}
	if t.Addr, err = netip.ParseAddrPort(addr); err != nil || name == "" || !slices.Contains(probe.Kinds, t.Kind) {
		return t, errors.New("expected NAME=KIND:IP:PORT, got " + strconv.Quote(value))
	}
	return t, nil
}

// fitNonce keeps out what would change the request, such as a space or a line feed.
func fitNonce(nonce string) bool {
	const fit = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
	return nonce != "" && len(nonce) <= 128 && strings.Trim(nonce, fit) == ""
}
