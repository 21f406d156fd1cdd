package imageparity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/tree"
)

// The folder of the feature's case follows the version of the image, also when it was written before.
func TestTheFeaturesFolderFollowsTheVersion(t *testing.T) {
	folder := t.TempDir()
	s := &scenario{name: catalogue.ImageFeature, ref: "127.0.0.1:1/parity/feature:run"}
	for _, nonce := range []string{"image-first", "image-second"} {
		s.current = version{nonce: nonce}
		if err := s.writeFolder(folder); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string][]string{
			"devcontainer.json": {`"./features/parity":{"word":"` + nonce + `"}`, `"dockerfile":"Dockerfile"`, `"context":".."`},
			"Dockerfile":        {"FROM " + s.ref + "\n", "COPY content/word ", "dockerfile-" + nonce, "USER dev\n"},
			"features/parity/devcontainer-feature.json": {`"id": "parity"`, `"containerEnv"`},
			"features/parity/" + "install.sh":           {"$WORD", "$_REMOTE_USER_HOME"},
		} {
			text, err := os.ReadFile(filepath.Join(folder, ".devcontainer", file))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range want {
				if !strings.Contains(string(text), part) {
					t.Errorf("%s lacks %q:\n%s", file, part, text)
				}
			}
		}
	}
}

func TestAddedIsWhatTheGuestHasBeyondItsImage(t *testing.T) {
	paths := func(list ...string) (entries []tree.Entry) {
		for _, path := range list {
			entries = append(entries, tree.Entry{Path: path})
		}
		return entries
	}
	got := added(paths("/etc", "/etc/passwd"),
		paths("/.msb", "/etc", "/etc/hosts", "/etc/passwd", "/etc/passwd-", "/opt", "/opt/x", "/proc", "/run/x", "/tmp/x", "/tmpx"))
	if want := []string{"/etc/passwd-", "/opt", "/opt/x", "/tmpx"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Two long lists that differ beyond what is shown differ in their summaries.
func TestSummaryTellsLongListsApart(t *testing.T) {
	if got := summary([]string{"/a", "/b"}); got != "/a /b" {
		t.Errorf("got %q", got)
	}
	var list []string
	for i := range 50 {
		list = append(list, fmt.Sprintf("/%02d", i))
	}
	first := summary(list)
	list[49] = "/another"
	if second := summary(list); first == second || !strings.Contains(first, "and 10 more") {
		t.Errorf("%q and %q", first, second)
	}
}
