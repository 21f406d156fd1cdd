package msbdriver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"dagger/parity/internal/msb"
)

// Locate finds msb in this process's environment: PARITY_MSB or PATH, and MSB_HOME.
func Locate() (*msb.Client, error) {
	path := os.Getenv("PARITY_MSB")
	if path == "" {
		var err error
		if path, err = exec.LookPath("msb"); err != nil {
			return nil, fmt.Errorf("MicroSandbox: %w; install msb, or give its path in PARITY_MSB", err)
		}
	}
	home := os.Getenv("MSB_HOME")
	if !filepath.IsAbs(home) {
		return nil, fmt.Errorf("MSB_HOME: expected an absolute path, seen %q", home)
	}
	return &msb.Client{Path: path, Home: home}, nil
}
