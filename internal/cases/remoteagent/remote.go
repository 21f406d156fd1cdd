package remoteagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/probe"
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

// binaryPath is where the remote has a workspace's runtime.
func (s *scenario) binaryPath() (name, sum string, err error) {
	key, b, err := s.manifest.Runtime("linux", "amd64")
	if err != nil {
		return "", "", err
	}
	return path.Join(s.machine.Home(), ".devsy/contexts/default/workspaces", s.ID, "agent/binaries", strings.ToLower(key), b.Name), b.SHA256, nil
}

// cacheEntry is where the remote's agent keeps its download of a URL.
func (s *scenario) cacheEntry(url string) string {
	return path.Join(s.cacheFolder(), sumOf([]byte(url)))
}

// cacheFolder is the agent's private download cache.
func (s *scenario) cacheFolder() string { return path.Join(s.machine.Home(), ".cache/devsy/providers") }

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
