package msb

import (
	_ "embed"
	"path/filepath"
	"strings"
)

//go:embed release.env
var releaseEnv string

// Release is the MicroSandbox release that Parity is proven with, from release.env.
type Release struct {
	Version string // such as 0.7.2
	SHA256  string // of the msb executable, in hex
}

// PinnedRelease gives the release that release.env names.
func PinnedRelease() Release {
	var r Release
	for line := range strings.SplitSeq(releaseEnv, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "MICROSANDBOX_VERSION":
			r.Version = value
		case "MICROSANDBOX_MSB_SHA256":
			r.SHA256 = value
		}
	}
	return r
}

// Path is where scripts/setup puts the release's msb, below Parity's cache folder.
func (r Release) Path(cache string) string {
	return filepath.Join(cache, "microsandbox", r.Version, "bin", "msb")
}
