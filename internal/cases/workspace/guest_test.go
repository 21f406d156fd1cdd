package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/subject"
)

// agent gives the program that is the SSH server in a guest.
func agent(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := labtest.Build(dir, "dagger/parity/cmd/parity-agent"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "parity-agent")
}

// session opens an SSH session to this machine in the place of a guest, with a folder of programs before those of the machine.
func session(t *testing.T, agent, path string) *subject.Session {
	t.Helper()
	dir := t.TempDir()
	cli := filepath.Join(dir, "cli")
	script := "#!/bin/sh\nexec " + agent + " ssh --stdio\n"
	if err := os.WriteFile(cli, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	home, err := subject.NewHome(subject.Home{Dir: filepath.Join(dir, "home"), Path: path + ":" + os.Getenv("PATH")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := subject.CLI{Argv: []string{cli}, Home: home}.Dial(t.Context(), "guest", "root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A guest has a program only if the file is whole and executable, whatever a hash says that was known before.
func TestFind(t *testing.T) {
	const right, wrong = "the program", "another one"
	dir := t.TempDir()
	program, one, other := filepath.Join(dir, "program"), filepath.Join(dir, "a place"), filepath.Join(dir, "other")
	server := agent(t)
	// Of whatever it is asked, it says the hash of the right program.
	const knowing = "#!/bin/sh\nexec /usr/bin/sha256sum "
	for _, test := range []struct {
		name, one, other string
		mode             os.FileMode
		sha256sum        string // in the place of the guest's own
		want             string
	}{
		{"in the first place", right, wrong, 0o755, "", one},
		{"in the second place", wrong, right, 0o755, "", other},
		{"in both", right, right, 0o755, "", one},
		{"another program", wrong, wrong, 0o755, "", ""},
		{"more than the program", right + "\n", right + right, 0o755, "", ""},
		{"not executable", right, right, 0o644, "", ""},
		{"a hash that was known", wrong, wrong, 0o755, knowing + program, ""},
		{"no sha256sum", right, right, 0o755, "#!/bin/sh\nexit 127", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := t.TempDir()
			write := func(name, content string, mode os.FileMode) {
				_ = os.Remove(name)
				if err := os.WriteFile(name, []byte(content), mode); err != nil {
					t.Fatal(err)
				}
			}
			write(program, right, 0o755)
			write(one, test.one, test.mode)
			write(other, test.other, test.mode)
			if test.sha256sum != "" {
				write(filepath.Join(path, "sha256sum"), test.sha256sum, 0o755)
			}
			g := &Guest{Session: session(t, server, path)}
			if got, err := g.find(t.Context(), program, one, other); err != nil || got != test.want {
				t.Errorf("expected %q, got %q, %v", test.want, got, err)
			}
		})
	}
}

// That the guest could not be asked is not that it lacks the program.
func TestFindSaysThatTheGuestCouldNotBeAsked(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	s := session(t, agent(t), "")
	_ = s.Close()
	if _, err := (&Guest{Session: s}).find(t.Context(), program, program); err == nil {
		t.Error("expected an error of a session that was closed")
	}
}
