package run

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"dagger/parity/fixtures/remote"
)

// Visit says which remote machine a run visits, as a user names it.
type Visit struct {
	URL        string // ssh://[USER@]HOST[:PORT]
	Key        string // the file of the user's private key; empty: those of this machine's user, as ssh has them
	KnownHosts string // the file with the machine's public key; empty: that of this machine's user
}

// keyFiles are the names of private keys in ~/.ssh, in ssh's order.
var keyFiles = []string{"id_rsa", "id_ecdsa", "id_ed25519"}

// target gives how the machine is reached. Nothing is sent to it.
func (v Visit) target() (t remote.Target, err error) {
	u, err := url.Parse(v.URL)
	if err != nil || strings.ContainsFunc(u.User.Username()+u.Host, notPrinted) || u.Scheme != "ssh" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return t, errors.New("expected ssh://[USER@]HOST[:PORT]")
	}
	if _, has := u.User.Password(); has {
		return t, errors.New("a password is in it, which is not used: name a private key with --remote-key")
	}
	t.User = u.User.Username()
	if t.User == "" {
		me, err := user.Current()
		if err != nil {
			return t, fmt.Errorf("it names no user, and this machine's is not known: %w", err)
		}
		t.User = me.Username
	}
	port := cmp.Or(u.Port(), "22")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return t, fmt.Errorf("expected a port of 1 to 65535, seen %q", port)
	}
	t.Address = net.JoinHostPort(u.Hostname(), port)
	if t.KeyFiles, err = v.keys(); err != nil {
		return t, err
	}
	t.HostKey, err = v.hostKeys(t.Address)
	return t, err
}

// notPrinted tells of what has no place in a name.
func notPrinted(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }

// Redacted is the URL for a message: without a password, should one be in it.
func (v Visit) Redacted() string {
	before, rest, ok := strings.Cut(v.URL, "://")
	at := strings.LastIndex(rest, "@")
	user, _, secret := strings.Cut(rest[:max(at, 0)], ":")
	if !ok || !secret {
		return v.URL
	}
	return before + "://" + user + ":xxxxx" + rest[at:]
}

// keys finds the private keys.
func (v Visit) keys() (files []string, err error) {
	if v.Key != "" {
		file, err := filepath.Abs(v.Key)
		if err == nil {
			_, err = remote.ReadKey(file)
		}
		return []string{file}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("the private key: %w: name it with --remote-key", err)
	}
	errs := []error{fmt.Errorf("no private key in %s that can be used: name one with --remote-key", filepath.Join(home, ".ssh"))}
	for _, name := range keyFiles {
		file := filepath.Join(home, ".ssh", name)
		if _, err := remote.ReadKey(file); err == nil {
			files = append(files, file)
		} else if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if files == nil {
		return nil, errors.Join(errs...)
	}
	return files, nil
}

// hostKeys gives the machine's public keys, one a line.
func (v Visit) hostKeys(address string) (string, error) {
	file := v.KnownHosts
	if file == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("the machine's public key: %w: name the file that has it with --remote-known-hosts", err)
		}
		file = filepath.Join(home, ".ssh", "known_hosts")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	next := fmt.Sprintf("; `ssh-keyscan -p %s %s` prints a line for it: see that the key is the machine's, and name the file with --remote-known-hosts", port, host)
	known, err := knownhosts.New(file)
	if err != nil {
		return "", fmt.Errorf("the machine's public key: %w%s", err, next)
	}
	// The library tells what is known of a host only when it is shown a key that is not.
	var unknown *knownhosts.KeyError
	if err := known(address, &net.TCPAddr{}, nobody{}); !errors.As(err, &unknown) || len(unknown.Want) == 0 {
		return "", fmt.Errorf("%s has no public key of %s%s", file, knownhosts.Normalize(address), next)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var lines strings.Builder
	written := strings.Split(string(text), "\n")
	for _, one := range unknown.Want {
		if strings.HasPrefix(strings.TrimSpace(written[one.Line-1]), "@cert-authority") {
			continue // it is nobody's host key
		}
		// What is revoked is known, too.
		if err := known(address, &net.TCPAddr{}, one.Key); err != nil {
			return "", fmt.Errorf("%s, line %d: the public key of %s is not to be trusted: %w", file, one.Line, knownhosts.Normalize(address), err)
		}
		lines.Write(ssh.MarshalAuthorizedKey(one.Key))
	}
	if lines.Len() == 0 {
		return "", fmt.Errorf("%s has only a certificate authority for %s, which is not supported%s", file, knownhosts.Normalize(address), next)
	}
	return lines.String(), nil
}

// nobody is a public key that no host has.
type nobody struct{}

func (nobody) Type() string                        { return "nobody" }
func (nobody) Marshal() []byte                     { return nil }
func (nobody) Verify([]byte, *ssh.Signature) error { return errors.New("it is nobody's") }
