package features

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// folder makes a folder of devcontainer.json with Features: the content of each devcontainer-feature.json by its path. Each has an install.sh.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, metadata := range files {
		put(t, filepath.Join(dir, name, metadataFile), metadata)
		put(t, filepath.Join(dir, name, installScript), "#!/bin/sh\n")
	}
	return dir
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// load is Load of what a devcontainer.json has as "features".
func load(t *testing.T, dir, asked string, override ...string) ([]Feature, error) {
	t.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(asked), &keys); err != nil {
		t.Fatal(err)
	}
	return Load(dir, keys, override)
}

// paths are the paths of Features, in their order.
func paths(install []Feature) string {
	var names []string
	for _, f := range install {
		names = append(names, f.Path)
	}
	return strings.Join(names, " ")
}

func TestOptions(t *testing.T) {
	dir := folder(t, map[string]string{"f": `{
		"id": "f", "version": "1.0.0", "name": "F", // comments are fine
		"options": {
			"version": {"type": "string", "proposals": ["1", "2"], "default": "1"},
			"pip-2": {"type": "boolean", "default": true},
			"9lives__": {"type": "string", "enum": ["a", "b"], "default": "a"},
			"unset": {"type": "string"},
		},
	}`})
	for _, c := range []struct {
		asked string
		want  map[string]string
		wrong string
	}{
		{asked: `{}`, want: map[string]string{"VERSION": "1", "PIP_2": "true", "_LIVES__": "a"}},
		{asked: `"3"`, want: map[string]string{"VERSION": "3", "PIP_2": "true", "_LIVES__": "a"}},
		{asked: `{"pip-2": false, "9lives__": "b", "unset": ""}`, want: map[string]string{"VERSION": "1", "PIP_2": "false", "_LIVES__": "b", "UNSET": ""}},
		{asked: `{"pip-2": "false"}`, want: map[string]string{"VERSION": "1", "PIP_2": "false", "_LIVES__": "a"}},
		{asked: `{"pip-2": "no"}`, wrong: `the option "pip-2": expected true or false, seen "no"`},
		{asked: `{"9lives__": "c"}`, wrong: `the option "9lives__": expected one of a, b; seen "c"`},
		{asked: `{"version": true}`, wrong: `the option "version": expected a string, seen true`},
		{asked: `{"colour": "red"}`, wrong: `unknown option "colour": expected one of 9lives__, pip-2, unset, version`},
		{asked: `{"version": 3}`, wrong: "expected a string or a boolean, seen 3"},
		{asked: `null`, wrong: "expected an object with options, or a version; seen null"},
		{asked: `[]`, wrong: "expected an object with options, or a version"},
	} {
		install, err := load(t, dir, `{"./f": `+c.asked+`}`)
		switch {
		case c.wrong != "":
			if err == nil || !strings.Contains(err.Error(), `the Feature "./f": `) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: got %v, want %q", c.asked, err, c.wrong)
			}
		case err != nil || len(install) != 1 || !maps.Equal(install[0].Options, c.want):
			t.Errorf("%s: got %+v, %v; want %v", c.asked, install, err, c.want)
		}
	}
}

func TestEnvironmentName(t *testing.T) {
	for option, want := range map[string]string{"a": "A", "myOption": "MYOPTION", "my-op.tion": "MY_OP_TION", "1_2a": "_A", "__a": "_A", "ä": "_"} {
		if got := environmentName(option); got != want {
			t.Errorf("%q: got %q, want %q", option, got, want)
		}
	}
}

func TestOrder(t *testing.T) {
	// metadata of a Feature with one more key
	m := func(id, more string) string {
		return `{"id": "` + id + `", "version": "1", "name": "n", "options": {"o": {"type": "string", "default": ""}}` + more + `}`
	}
	for name, c := range map[string]struct {
		files    map[string]string
		asked    string
		override []string
		want     string
		wrong    string
	}{
		"by name": {
			files: map[string]string{"b": m("b", ""), "x/a": m("a", ""), "c": m("c", "")},
			asked: `{"./c": {}, "./x/a": {}, "./b": {}}`, want: "b c x/a",
		},
		"installsAfter a folder, an id, and what is not installed": {
			files: map[string]string{"a": m("a", `, "installsAfter": ["./x/c", "ghcr.io/some/feature", "absent"]`), "b": m("b", `, "installsAfter": ["a"]`), "x/c": m("c", "")},
			asked: `{"./a": {}, "./b": {}, "./x/c": {}}`, want: "x/c a b",
		},
		"installsAfter adds nothing": {
			files: map[string]string{"a": m("a", `, "installsAfter": ["./b"]`), "b": m("b", "")}, asked: `{"./a": {}}`, want: "a",
		},
		"dependsOn adds what it needs, which may need more": {
			files: map[string]string{"a": m("a", `, "dependsOn": {"./b": {}}`), "b": m("b", `, "dependsOn": {"./c": {}}`), "c": m("c", "")},
			asked: `{"./a": {}}`, want: "c b a",
		},
		"dependsOn what is asked for already": {
			files: map[string]string{"a": m("a", `, "dependsOn": {"./b": {}}`), "b": m("b", "")}, asked: `{"./a": {}, "./b": {}}`, want: "b a",
		},
		"dependsOn with other options is another Feature": {
			files: map[string]string{"a": m("a", `, "dependsOn": {"./b": {"o": "x"}}`), "b": m("b", "")}, asked: `{"./a": {}, "./b": {}}`, want: "b b a",
		},
		"override": {
			files: map[string]string{"a": m("a", ""), "b": m("b", ""), "c": m("c", "")},
			asked: `{"./a": {}, "./b": {}, "./c": {}}`, override: []string{"./c", "b"}, want: "c b a",
		},
		"override does not go before what is needed": {
			files: map[string]string{"a": m("a", ""), "b": m("b", `, "installsAfter": ["./a"]`), "c": m("c", "")},
			asked: `{"./a": {}, "./b": {}, "./c": {}}`, override: []string{"./b"}, want: "a c b",
		},
		"a circle of installsAfter": {
			files: map[string]string{"a": m("a", `, "installsAfter": ["./b"]`), "b": m("b", `, "installsAfter": ["./c"]`), "c": m("c", `, "installsAfter": ["./b"]`)},
			asked: `{"./a": {}, "./b": {}, "./c": {}}`, wrong: "make a circle, so that there is no order of installation: ./b -> ./c -> ./b",
		},
		"a circle of dependsOn": {
			files: map[string]string{"a": m("a", `, "dependsOn": {"./a": {}}`)}, asked: `{"./a": {}}`, wrong: "./a -> ./a",
		},
		"override of nothing": {
			files: map[string]string{"a": m("a", "")}, asked: `{"./a": {}}`, override: []string{"./b"},
			wrong: `overrideFeatureInstallOrder: "./b" is none of the Features that are to be installed`,
		},
		"dependsOn a registry's": {
			files: map[string]string{"a": m("a", `, "dependsOn": {"ghcr.io/x/y": {}}`)}, asked: `{"./a": {}}`,
			wrong: `the Feature "./a": dependsOn: the Feature "ghcr.io/x/y": expected a folder such as ./features/name`,
		},
	} {
		install, err := load(t, folder(t, c.files), c.asked, c.override...)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: got %v, want %q", name, err, c.wrong)
			}
		} else if err != nil || paths(install) != c.want {
			t.Errorf("%s: got %s, %v; want %s", name, paths(install), err, c.want)
		}
	}
}

func TestWrongFeatures(t *testing.T) {
	const good = `{"id": "f", "version": "1", "name": "n"`
	for name, c := range map[string]struct{ ref, metadata, wrong string }{
		"a registry's":     {ref: "ghcr.io/devcontainers/features/go:1", wrong: "Features from a registry or a URL are not supported"},
		"a URL":            {ref: "https://example.test/f.tgz", wrong: "Features from a registry or a URL are not supported"},
		"an absolute path": {ref: "/f", wrong: "expected a folder such as ./features/name"},
		"outside":          {ref: "../f", wrong: "expected a folder below that of devcontainer.json"},
		"outside, hidden":  {ref: "./f/../../f", wrong: "expected a folder below that of devcontainer.json"},
		"the folder":       {ref: "./", wrong: "expected a folder below that of devcontainer.json"},
		"missing":          {ref: "./g", wrong: "g/devcontainer-feature.json: no such file"},
		"a link outside":   {ref: "./away", wrong: "path escapes"},
		"no script":        {ref: "./bare", wrong: "bare/install.sh: no such file"},
		"no JSON":          {metadata: `{`, wrong: "f/devcontainer-feature.json: not JSON with comments"},
		"no object":        {metadata: `[]`, wrong: "expected a JSON object"},
		"no version":       {metadata: `{"id": "f", "name": "n"}`, wrong: `the key "version" is missing`},
		"another id":       {metadata: `{"id": "g", "version": "1", "name": "n"}`, wrong: `the key "id": expected the name of its folder, "f", seen "g"`},
		"privileged":       {metadata: good + `, "privileged": true}`, wrong: `the key "privileged" is not supported by the reference CLI, which reads id, version`},
		"wrong type":       {metadata: good + `, "installsAfter": "x"}`, wrong: `the key "installsAfter"`},
		"wrong variable":   {metadata: good + `, "containerEnv": {"A B": "x"}}`, wrong: `expected the name of a variable, seen "A B"`},
		"two lines":        {metadata: good + `, "containerEnv": {"A": "x\ny"}}`, wrong: `A: expected one line`},
		"type of option":   {metadata: good + `, "options": {"o": {"type": "number", "default": "1"}}}`, wrong: `expected the type string or boolean, seen "number"`},
		"default of other type": {metadata: good + `, "options": {"o": {"type": "boolean", "default": "x"}}}`,
			wrong: `the option "o": expected true or false, seen "x"`},
	} {
		if c.metadata == "" {
			c.metadata = good + "}"
		}
		if c.ref == "" {
			c.ref = "./f"
		}
		dir := folder(t, map[string]string{"f": c.metadata})
		put(t, filepath.Join(dir, "bare", metadataFile), `{"id": "bare", "version": "1", "name": "n"}`)
		if err := os.Symlink(t.TempDir(), filepath.Join(dir, "away")); err != nil {
			t.Fatal(err)
		}
		_, err := load(t, dir, `{"`+c.ref+`": {}}`)
		if err == nil || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: got %v, want %q", name, err, c.wrong)
		}
	}
}

// unpacked writes the context of a build and unpacks it; it gives the folder.
func unpacked(t *testing.T, dir, base string, users Users, install []Feature) string {
	t.Helper()
	var context bytes.Buffer
	if err := WriteContext(&context, dir, base, users, install); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	for r := tar.NewReader(&context); ; {
		h, err := r.Next()
		if err == io.EOF {
			return to
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		file := filepath.Join(to, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(file, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, file)
		default:
			content, readErr := io.ReadAll(r)
			err = errors.Join(readErr, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, h.FileInfo().Mode()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestDockerfile(t *testing.T) {
	dir := folder(t, map[string]string{
		"a": `{"id": "a", "version": "1", "name": "n", "containerEnv": {"Z": "1", "A": "a \"b\" \\", "PATH": "/opt/a:${PATH}"}}`,
		"b": `{"id": "b", "version": "1", "name": "n"}`,
	})
	install, err := load(t, dir, `{"./a": {}, "./b": {}}`)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"dev:users": `FROM base:1
USER root
ENV Z="1"
ENV A="a \"b\" \\"
ENV PATH="/opt/a:${PATH}"
COPY 0/ /.dev-container-features/0/
RUN ["/bin/sh","-ec","cd /.dev-container-features/0; /bin/sh ./devcontainer-features-install.sh; cd /; rm -rf /.dev-container-features"]
COPY 1/ /.dev-container-features/1/
RUN ["/bin/sh","-ec","cd /.dev-container-features/1; /bin/sh ./devcontainer-features-install.sh; cd /; rm -rf /.dev-container-features"]
USER dev:users
`,
		"": "COPY", // nothing of a user
	} {
		got, err := os.ReadFile(filepath.Join(unpacked(t, dir, "base:1", Users{Image: user}, install), Dockerfile))
		if err != nil || user != "" && string(got) != want || user == "" && strings.Contains(string(got), "USER") {
			t.Errorf("the user %q: got %v\n%s", user, err, got)
		}
	}
}

// What the Dockerfile runs is run here, with a real shell: install.sh sees its options, the users and their homes, and its own folder.
func TestInstallation(t *testing.T) {
	dir := folder(t, map[string]string{"f": `{"id": "f", "version": "1", "name": "it's", "options": {
		"text": {"type": "string", "default": "it's $HOME \"x\" ` + "`id`" + `"}, "flag": {"type": "boolean", "default": true}}}`})
	put(t, filepath.Join(dir, "f", installScript), `#!/bin/sh
echo "$TEXT|$FLAG|$_REMOTE_USER|$_REMOTE_USER_HOME|$_CONTAINER_USER|$_CONTAINER_USER_HOME"
cat beside/file link
exit $CODE
`)
	put(t, filepath.Join(dir, "f", "beside", "file"), "beside\n")
	if err := os.Symlink("beside/file", filepath.Join(dir, "f", "link")); err != nil {
		t.Fatal(err)
	}
	install, err := load(t, dir, `{"./f": {}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		users Users
		want  string
	}{
		{Users{Container: "nobody:x", Remote: "root"}, "|root|/root|nobody|/nonexistent\n"},
		{Users{Remote: "65534"}, "|65534|/nonexistent|root|/root\n"},
		{Users{Remote: "no such user"}, "|no such user||root|/root\n"},
	} {
		for _, code := range []string{"0", "3"} {
			cmd := exec.Command("/bin/sh", "./"+runner)
			cmd.Dir = filepath.Join(unpacked(t, dir, "base:1", c.users, install), "0")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CODE=" + code}
			out, err := cmd.CombinedOutput()
			want := "Feature ./f (it's)\nit's $HOME \"x\" `id`|true" + c.want + "beside\nbeside\n"
			wantErr := "<nil>"
			if code != "0" {
				want, wantErr = want+"Feature ./f (it's): install.sh exited with code 3\n", "exit status 3"
			}
			if seen := fmt.Sprint(err); string(out) != want || seen != wantErr {
				t.Errorf("%+v, code %s: got %s, %q; want %s, %q", c.users, code, seen, out, wantErr, want)
			}
		}
	}
}

// A Feature's own files do not take the places of what installs it.
func TestTheInstallerIsNotTheFeaturesOwn(t *testing.T) {
	dir := folder(t, map[string]string{"f": `{"id": "f", "version": "1", "name": "n"}`})
	put(t, filepath.Join(dir, "f", runner), "mine")
	put(t, filepath.Join(dir, "f", optionsFile), "mine")
	install, err := load(t, dir, `{"./f": {}}`)
	if err != nil {
		t.Fatal(err)
	}
	to := unpacked(t, dir, "base:1", Users{}, install)
	for _, name := range []string{runner, optionsFile} {
		if text, err := os.ReadFile(filepath.Join(to, "0", name)); err != nil || slices.Equal(text, []byte("mine")) {
			t.Errorf("%s: %v, %q", name, err, text)
		}
	}
}
