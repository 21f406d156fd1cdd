package manifest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// FileName is the name of a manifest.
const FileName = "provider.yaml"

// Load reads the manifest that a source leads to: a URL, for which it calls get, a file, or a folder with a provider.yaml. It gives the
// source in a form that does not depend on the working folder.
func Load(ctx context.Context, source string, get func(context.Context, string) ([]byte, error)) (m *Manifest, from string, err error) {
	var text []byte
	if IsURL(source) {
		text, err = get(ctx, source)
	} else if source, err = filepath.Abs(source); err == nil {
		if info, statErr := os.Stat(source); statErr == nil && info.IsDir() {
			source = filepath.Join(source, FileName)
		}
		text, err = os.ReadFile(source)
	}
	if err != nil {
		return nil, source, fmt.Errorf("provider source: %w", err)
	}
	if m, err = Parse(text); err != nil && IsURL(source) { // whose secrets are not to be shown
		return nil, source, err
	} else if err != nil {
		return nil, source, fmt.Errorf("%s: %w", source, err)
	}
	return m, source, nil
}

// IsURL tells whether Load takes a source for a URL.
func IsURL(source string) bool {
	return strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://")
}
