package run

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindToolsRefusesASubjectThatTheKernelCannotRun(t *testing.T) {
	siblings(t)
	good, _ := program(t, saysVersion, 0o755)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	object := bytes.Clone(self)
	object[16], object[17] = 1, 0 // e_type: a relocatable file
	for name, test := range map[string]struct{ content, want string }{
		"text":                   {"echo hello\n", `begins with "echo hello\n"`},
		"a picture":              {"\x89PNG\r\n\x1a\n", `begins with "\x89PNG`},
		"empty":                  {"", "is empty"},
		"no interpreter":         {"#!\n", "names no interpreter"},
		"interpreter is missing": {"#!/nonexistent/sh -e\n", "/nonexistent/sh"},
		"cut off":                {string(self[:40]), "broken ELF file"},
		"an object file":         {string(object), "ET_REL"},
	} {
		path := filepath.Join(t.TempDir(), "subject")
		if err := os.WriteFile(path, []byte(test.content), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: good, Subject: path})
		for _, want := range []string{"--subject", path, test.want} {
			if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	for _, path := range []string{"/proc/self/exe", filepath.Join(good, "bin", "msb")} { // a program and a script
		if _, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: good, Subject: path}); err != nil {
			t.Error(err)
		}
	}
}

// FindTools looks for Parity's programs beside this one, which is the test's.
func siblings(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"parity-probe", "parity-agent"} {
		if err := os.WriteFile(beside(self, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(beside(self, name)) })
	}
}

// program makes a folder with an executable bin/msb and gives the folder and the program's SHA-256.
func program(t *testing.T, content string, mode os.FileMode) (dir, sum string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "msb"), []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256([]byte(content))
	return dir, hex.EncodeToString(hash[:])
}

const saysVersion = "#!/bin/sh\n[ \"$*\" = --version ] && echo msb 9.9.9\n"

func TestFindToolsTakesTheMicroSandboxThatIsGiven(t *testing.T) {
	siblings(t)
	dir, sum := program(t, saysVersion, 0o755)
	for hash, pin := range map[string]string{"": "unpinned", sum: "pinned", strings.ToUpper(sum): "pinned"} {
		tools, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: dir, MicroSandboxSHA256: hash, Subject: filepath.Join(dir, "bin", "msb")})
		if err != nil {
			t.Fatal(err)
		}
		if m := tools.MicroSandbox; m.Version != "9.9.9" || m.SHA256 != sum || m.Pin != pin {
			t.Errorf("with the hash %q: %+v", hash, m)
		}
		if tools.Subject.Kind != "file" || tools.Subject.Name != "msb" || tools.Subject.SHA256 != sum {
			t.Errorf("the subject is %+v", tools.Subject)
		}
	}
}

// The agent is the subject's own file, unless another one is named.
func TestFindToolsTakesTheAgentThatIsGiven(t *testing.T) {
	siblings(t)
	dir, _ := program(t, saysVersion, 0o755)
	other, sum := program(t, "#!/bin/sh\nexit 0\n", 0o755)
	subject, agent := filepath.Join(dir, "bin", "msb"), filepath.Join(other, "bin", "msb")
	o := ToolOptions{Cache: t.TempDir(), MicroSandbox: dir, Subject: subject}
	if tools, err := FindTools(t.Context(), o); err != nil || tools.Cases.AgentFile != subject || tools.Served != nil {
		t.Errorf("%q, %+v, %v", tools.Cases.AgentFile, tools.Served, err)
	}
	o.AgentFile = agent
	if tools, err := FindTools(t.Context(), o); err != nil || tools.Cases.AgentFile != agent || tools.Served == nil || tools.Served.SHA256 != sum {
		t.Errorf("%q, %+v, %v", tools.Cases.AgentFile, tools.Served, err)
	}
	none, _ := program(t, "no program", 0o755)
	for _, bad := range []string{filepath.Join(none, "bin", "msb"), filepath.Join(none, "bin", "none"), none} {
		o.AgentFile = bad
		if _, err := FindTools(t.Context(), o); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "--agent: ") || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestFindToolsRefusesWhatItCannotUse(t *testing.T) {
	good, _ := program(t, saysVersion, 0o755)
	if _, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: good}); !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "parity-probe") ||
		!strings.Contains(err.Error(), "scripts/build") {
		t.Errorf("without Parity's own programs: %v", err)
	}
	siblings(t)
	_, sum := program(t, saysVersion, 0o755)
	for name, test := range map[string]struct {
		content string
		mode    os.FileMode
		hash    string
		want    []string
	}{
		"another hash":    {saysVersion, 0o755, strings.Repeat("0", 64), []string{"expected SHA-256 " + strings.Repeat("0", 64), "seen " + sum}},
		"not executable":  {saysVersion, 0o644, "", []string{"is not an executable file"}},
		"it fails":        {"#!/bin/sh\necho >&2 no libc; exit 1\n", 0o755, "", []string{"exited with code 1", "no libc"}},
		"it says nothing": {"#!/bin/sh\n", 0o755, "", []string{"expected a version"}},
		"not a program":   {"hello", 0o755, "", []string{"neither a program nor a script", `"hello"`, "#!"}},
	} {
		dir, _ := program(t, test.content, test.mode)
		_, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: dir, MicroSandboxSHA256: test.hash})
		for _, want := range append(test.want, "--microsandbox", filepath.Join(dir, "bin", "msb")) {
			if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	_, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir()})
	if !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "scripts/setup") {
		t.Errorf("without the pinned MicroSandbox: %v", err)
	}
}
