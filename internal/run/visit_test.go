package run

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// keyPair makes a key pair: the private half in PEM, the public one.
func keyPair(t *testing.T, passphrase string) (private []byte, public ssh.PublicKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	if public, err = ssh.NewPublicKey(pub); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block), public
}

func TestARemoteMachineIsNamedAsSSHDoes(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	in := func(name string) string { return filepath.Join(home, ".ssh", name) }
	private, public := keyPair(t, "")
	locked, _ := keyPair(t, "secret")
	_, revoked := keyPair(t, "")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ssh.NewPublicKey(&other.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	known := knownhosts.Line([]string{"build.example", "192.0.2.1"}, public) + "\n" + knownhosts.Line([]string{knownhosts.HashHostname("build.example")}, second) + "\n" +
		knownhosts.Line([]string{"[build.example]:2222"}, second) + "\n" + knownhosts.Line([]string{"[2001:db8::1]:2222"}, public) + "\n" +
		knownhosts.Line([]string{"revoked.example"}, revoked) + "\n@revoked " + knownhosts.Line([]string{"*"}, revoked) + "\n" +
		"@cert-authority " + knownhosts.Line([]string{"certified.example"}, public) + "\n"
	err = errors.Join(os.Mkdir(filepath.Dir(in("x")), 0o700), os.WriteFile(in("id_ed25519"), private, 0o600), os.WriteFile(in("id_rsa"), locked, 0o600),
		os.WriteFile(in("other"), private, 0o600), os.WriteFile(in("known_hosts"), []byte(known), 0o600), os.WriteFile(in("known_elsewhere"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	both := []string{string(ssh.MarshalAuthorizedKey(public)), string(ssh.MarshalAuthorizedKey(second))}
	for name, test := range map[string]struct {
		visit         Visit
		user, address string
		keys          []string
		keyFile       string
	}{
		"host alone":       {Visit{URL: "ssh://build.example"}, "", "build.example:22", both, "id_ed25519"}, // the other default one has a passphrase
		"user and port":    {Visit{URL: "ssh://me@build.example:2222"}, "me", "build.example:2222", both[1:], "id_ed25519"},
		"an IPv6 address":  {Visit{URL: "ssh://me@[2001:db8::1]:2222/"}, "me", "[2001:db8::1]:2222", both[:1], "id_ed25519"},
		"key, known hosts": {Visit{URL: "ssh://me@192.0.2.1", Key: in("other"), KnownHosts: in("known_hosts")}, "me", "192.0.2.1:22", both[:1], "other"},
	} {
		got, err := test.visit.target()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		lines := strings.SplitAfter(strings.TrimSuffix(got.HostKey, "\n"), "\n")
		for i := range lines {
			lines[i] = strings.TrimSuffix(lines[i], "\n") + "\n"
		}
		slices.Sort(lines)
		want := slices.Sorted(slices.Values(test.keys))
		if got.Address != test.address || test.user != "" && got.User != test.user || got.User == "" || !slices.Equal(lines, want) ||
			!slices.Equal(got.KeyFiles, []string{in(test.keyFile)}) || got.Key != "" {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for name, test := range map[string]struct {
		visit Visit
		want  string
	}{
		"no URL":           {Visit{URL: "me@build.example"}, "expected ssh://[USER@]HOST[:PORT]"},
		"another scheme":   {Visit{URL: "https://build.example"}, "expected ssh://[USER@]HOST[:PORT]"},
		"no host":          {Visit{URL: "ssh://me@"}, "expected ssh://[USER@]HOST[:PORT]"},
		"a path":           {Visit{URL: "ssh://build.example/home"}, "expected ssh://[USER@]HOST[:PORT]"},
		"a password":       {Visit{URL: "ssh://me:secret@build.example"}, "--remote-key"},
		"a line feed":      {Visit{URL: "ssh://m%0Ae@build.example"}, "expected ssh://[USER@]HOST[:PORT]"},
		"a revoked key":    {Visit{URL: "ssh://me@revoked.example"}, "is not to be trusted: knownhosts: key is revoked"},
		"an authority":     {Visit{URL: "ssh://me@certified.example"}, "has only a certificate authority for certified.example"},
		"port 0":           {Visit{URL: "ssh://build.example:0"}, `"0"`},
		"a high port":      {Visit{URL: "ssh://build.example:65536"}, `"65536"`},
		"no key":           {Visit{URL: "ssh://build.example", Key: in("none")}, in("none")},
		"a locked key":     {Visit{URL: "ssh://build.example", Key: in("id_rsa")}, "has a passphrase"},
		"no private key":   {Visit{URL: "ssh://build.example", Key: in("known_hosts")}, in("known_hosts")},
		"an unknown host":  {Visit{URL: "ssh://other.example:2222"}, "ssh-keyscan -p 2222 other.example"},
		"no known hosts":   {Visit{URL: "ssh://build.example", KnownHosts: in("none")}, in("none")},
		"an empty file":    {Visit{URL: "ssh://build.example", KnownHosts: in("known_elsewhere")}, "has no public key of build.example"},
		"no file of known": {Visit{URL: "ssh://build.example", KnownHosts: in("id_ed25519")}, in("id_ed25519")},
	} {
		if got, err := test.visit.target(); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: expected an error with %q, got %+v, %v", name, test.want, got, err)
		}
	}
	for url, want := range map[string]string{
		"ssh://me:secret@build.example:22": "ssh://me:xxxxx@build.example:22", "ssh://me:se@cret@h": "ssh://me:xxxxx@h", "ssh://me@build.example:22": "ssh://me@build.example:22",
	} {
		if got := (Visit{URL: url}).Redacted(); got != want {
			t.Errorf("%s is shown as %s", url, got)
		}
	}
	if err := os.Remove(in("id_ed25519")); err != nil {
		t.Fatal(err)
	}
	if _, err := (Visit{URL: "ssh://build.example"}).target(); err == nil || !strings.Contains(err.Error(), "--remote-key") || !strings.Contains(err.Error(), "passphrase") {
		t.Errorf("no key that can be used: %v", err)
	}
}
