package remoteagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/reference/manifest"
)

// What the preflight of the remote looks at.

func (s *scenario) tls(ctx context.Context) (string, error) {
	return "it succeeds with the bundle, and fails for the certificate's sake without it", s.machine.TLS(ctx)
}

func (s *scenario) kvm(ctx context.Context) (string, error) {
	if err := fault.Failing(fault.RemoteWithoutKVM); err != nil {
		return "", err
	}
	if s.StandIn {
		return "not looked for: the stand-in for MicroSandbox needs none", nil
	}
	return "/dev/kvm opens, and `msb doctor` agrees", s.machine.KVM(ctx)
}

func (s *scenario) disk(ctx context.Context) (string, error) {
	if err := fault.Failing(fault.RemoteWithoutRoom); err != nil {
		return "", err
	}
	return "each has room, takes user xattrs and runs programs", s.machine.Disk(ctx)
}

// download has the remote fetch a file of a server that is not counted.
func (s *scenario) download(ctx context.Context) (string, error) {
	if err := fault.Failing(fault.RemoteCannotDownload); err != nil {
		return "", err
	}
	one, err := artifacts.Start(s.listen(), cases.Nonce("trial"), []byte("trial"))
	if err != nil {
		return "", err
	}
	defer one.Close()
	url, err := s.reached(ctx, one)
	if err != nil {
		return "", err
	}
	if err := s.machine.Download(ctx, url); err != nil {
		return "", err
	}
	// What comes from another address is not told from what this side does.
	all := one.Receipts().Requests
	if len(all) != 1 || all[0].Peer != s.machine.Address().String() {
		return "", fmt.Errorf("%s was to be asked for once, from %s, and was: %s", url, s.machine.Address(), requests(all))
	}
	return "it got " + url, nil
}

// sumOf is the SHA-256 of a content, in hex.
func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// file is what is at a path on the remote.
type file struct{ probe.File }

// String describes the file in one line.
func (f file) String() string {
	return fmt.Sprintf("%s: %s, mode %04o, %d bytes, SHA-256 %s, device %d, inode %d, born %s, changed %s",
		f.Path, f.Type, f.Mode, f.Size, f.SHA256, f.Device, f.Inode, f.Born, f.Modified)
}

// probePath is where the remote has the probe program.
func (s *scenario) probePath() string { return path.Join(s.machine.Home(), "parity-probe") }

// askRemote runs the probe program on the remote and reads its answer.
func askRemote[T any](ctx context.Context, s *scenario, args []string, parse func([]byte) (T, error)) (answer T, err error) {
	res, err := s.machine.Run(ctx, shellescape.QuoteCommand(append([]string{s.probePath()}, args...)), nil)
	if err != nil {
		return answer, fmt.Errorf("the probe program on the remote: %w", err)
	}
	return parse(res.Stdout)
}

// look looks at a file on the remote.
func (s *scenario) look(ctx context.Context, name string) (file, error) {
	f, err := askRemote(ctx, s, probe.FileArgs(name), probe.ParseFile)
	return file{f}, err
}

// hold has a process on the remote keep a file open, and gives its id: the inode number of a file that is held cannot come back.
func (s *scenario) hold(ctx context.Context, name string) (pid string, err error) {
	res, err := s.machine.Run(ctx, fmt.Sprintf("sleep 86400 3<%s </dev/null >/dev/null 2>&1 & echo $!", shellescape.Quote(name)), nil)
	if err != nil {
		return "", err
	}
	pid = strings.TrimSpace(string(res.Stdout))
	return pid, s.held(ctx, pid)
}

// held shows that the process still holds the file.
func (s *scenario) held(ctx context.Context, pid string) error {
	if _, err := s.machine.Run(ctx, "test -e /proc/"+shellescape.Quote(pid)+"/fd/3", nil); err != nil {
		return fmt.Errorf("the process on the remote that holds the runtime open for this case is gone: %w", err)
	}
	return nil
}

// runtimeFile is the runtime as the workspace's manifest has it.
func (s *scenario) runtimeFile() (manifest.Binary, error) {
	_, b, err := s.manifest.Runtime("linux", "amd64")
	return b, err
}

// copies lists the files below the remote's home that are the runtime, by their content. What is
// mounted below it is not looked at.
func (s *scenario) copies(ctx context.Context) ([]file, error) {
	b, err := s.runtimeFile()
	if err != nil {
		return nil, err
	}
	found, err := s.find(ctx, fmt.Sprintf("-type f -size %dc", s.runtimeSize))
	return slices.DeleteFunc(found, func(f file) bool { return f.SHA256 != b.SHA256 }), err
}

// find looks at what GNU's find finds below the remote's home, in the order of the paths.
// MicroSandbox's store is left out: guests' files are there, and not all of them are this user's to
// read.
func (s *scenario) find(ctx context.Context, wanted string) (found []file, err error) {
	res, err := s.machine.Run(ctx, fmt.Sprintf("find %s -ignore_readdir_race -xdev -path %s -prune -o %s -print0",
		shellescape.Quote(s.machine.Home()), shellescape.Quote(s.machine.MSBHome()), wanted), nil)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(strings.SplitSeq(strings.TrimSuffix(string(res.Stdout), "\x00"), "\x00")) {
		if name == "" {
			continue
		}
		f, err := s.look(ctx, name)
		if err != nil {
			return nil, err
		}
		if f.Type != probe.Missing { // else it is gone since
			found = append(found, f)
		}
	}
	return found, nil
}

// described describes files in a line each, or says that there are none.
func described(list []file) string {
	if len(list) == 0 {
		return "none"
	}
	var all []string
	for _, f := range list {
		all = append(all, f.String())
	}
	return strings.Join(all, "; ")
}

// paths names files.
func paths(list []file) string {
	var all []string
	for _, f := range list {
		all = append(all, f.Path)
	}
	return strings.Join(all, ", ")
}

// exists tells whether there is something on the remote.
func (s *scenario) exists(ctx context.Context, name string) (bool, error) {
	f, err := s.look(ctx, name)
	return err == nil && f.Type != probe.Missing, err
}

// remove removes a file or a folder below the remote's home.
func (s *scenario) remove(ctx context.Context, name string) error {
	if err := checkBelow(s.machine.Home(), name); err != nil {
		return err
	}
	_, err := s.machine.Run(ctx, "rm -rf -- "+shellescape.Quote(name), nil)
	return err
}

// checkBelow refuses a path that does not plainly lie below a home of a user's own.
func checkBelow(home, name string) error {
	if !path.IsAbs(home) || home == "/" || path.Clean(name) != name || !strings.HasPrefix(name, home+"/") {
		return fmt.Errorf("%q is not below the remote's home %q: nothing is removed", name, home)
	}
	return nil
}
