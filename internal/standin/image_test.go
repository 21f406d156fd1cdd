package standin_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/tree"
)

const hardReference = "parity.test/hard:1"

// hardGuest gives a stand-in with the fault, and in it a sandbox of an image with the hard tree and the probe program.
func hardGuest(t *testing.T, f fault.Fault, archive string) *msb.Client {
	t.Helper()
	c := msbtest.NewClient(t, program(t, f))
	if err := c.Load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(labtest.Programs(), probe.Program)
	o := msb.CreateOptions{Name: "hard", Image: hardReference, Copies: []msb.Copy{{Source: own, Target: "/opt/probe"}}}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return c
}

// Each fault spoils what it says, and nothing else.
func TestImageFaults(t *testing.T) {
	img, err := images.Build(images.Spec{Nonce: "faults", HardTree: true, User: "dev", Env: map[string]string{"WORD": "word"}})
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "hard.tar")
	if err := images.WriteDockerArchive(archive, hardReference, img); err != nil {
		t.Fatal(err)
	}
	long := "/names/" + strings.Repeat("d", 120)
	longer := long + "/" + strings.Repeat("e", 120)
	cut := "/names/" + strings.Repeat("d", 100)
	cutLonger := cut + "/" + strings.Repeat("e", 100)
	for f, test := range map[fault.Fault]struct {
		spoilt []string // below images.TreePath
		user   string   // what a command says of its user and its environment
	}{
		"":                         {nil, "dev word\n"},
		fault.ImageByteFlipped:     {[]string{"/large"}, "dev word\n"},
		fault.ImageHardLinkBroken:  {[]string{"/links/one"}, "dev word\n"},
		fault.ImageSetuidLost:      {[]string{"/layers/changed", "/modes/setuid"}, "dev word\n"},
		fault.ImageSymlinkFollowed: {[]string{"/symlinks/owned", "/symlinks/relative"}, "dev word\n"},
		fault.ImageDanglingLost:    {[]string{"/symlinks/dangling", "/symlinks/long"}, "dev word\n"},
		fault.ImageEmptyFolderLost: {[]string{"/empty-folder", "/modes/shared", "/modes/sticky"}, "dev word\n"},
		fault.ImageOwnerLost: {[]string{"/layers/changed", "/layers/changed-folder", "/links/one", "/links/two", "/links/within/three", "/modes/closed",
			"/modes/closed/file", "/modes/setgid", "/modes/setuid", "/modes/shared", "/owners/dev", "/owners/far", "/owners/far/file",
			"/owners/stranger", "/symlinks/owned"}, "dev word\n"},
		fault.ImageLongNameCut: {[]string{cut, cutLonger, cutLonger + "/file", long, longer, longer + "/file"}, "dev word\n"},
		fault.ImageWhiteoutIgnored: {[]string{"/layers/removed", "/layers/removed-folder", "/layers/removed-folder/file",
			"/layers/returned-folder/before"}, "dev word\n"},
		fault.ImageOpaqueIgnored: {[]string{"/layers/opaque/folder", "/layers/opaque/folder/gone", "/layers/opaque/gone"}, "dev word\n"},
		fault.ImageEnvDropped:    {nil, "dev\n"},
	} {
		t.Run(string(f), func(t *testing.T) {
			c := hardGuest(t, f, archive)
			res, err := c.Exec(t.Context(), "hard", []string{"sh", "-c", "echo $(id -un) $WORD"}, nil)
			if err != nil || string(res.Stdout) != test.user {
				t.Errorf("expected the user and the environment %q, got %q, %v", test.user, res.Stdout, err)
			}
			list := c.ExecCmdAs("hard", msb.ExecOptions{User: "root"}, append([]string{"/opt/probe"}, probe.TreeArgs(images.TreePath)...))
			if res, err = proc.Run(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			seen, err := probe.ParseTree(res.Stdout)
			if err != nil {
				t.Fatal(err)
			}
			var spoilt []string
			for _, d := range tree.Compare(images.HardTree("faults"), seen.Entries, tree.Rules{Exactly: []string{"/"}}) {
				spoilt = append(spoilt, strings.TrimPrefix(d.Path, images.TreePath))
			}
			if !slices.Equal(spoilt, test.spoilt) {
				t.Errorf("expected that these are spoilt:\n%q\ngot\n%q", test.spoilt, spoilt)
			}
		})
	}
}
