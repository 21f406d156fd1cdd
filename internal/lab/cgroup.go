package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// cgroupRoot is where cgroups are: one hierarchy (version 2), or a folder for each (version 1).
const cgroupRoot = "/sys/fs/cgroup"

// Cgroup is the cgroup, as a path in every hierarchy, below which a command in a lab makes others. Cgroups have no namespace that ends
// them: the lab's end removes it, or whatever cleans up after a killed lab.
func Cgroup() string { return cgroupOf(os.Getenv(EnvScratch)) }

// cgroupOf gives the cgroup of the lab with the scratch folder.
func cgroupOf(scratch string) string { return "/parity-" + filepath.Base(scratch) }

// RemoveCgroup removes a cgroup, given as its path in every hierarchy, and those below it. Nothing may run in them any more.
func RemoveCgroup(path string) error {
	found, err := filepath.Glob(filepath.Join(cgroupRoot, "*", path))
	for _, top := range append(found, filepath.Join(cgroupRoot, path)) {
		err = errors.Join(err, removeFolders(top))
	}
	if err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", path, err)
	}
	return nil
}

// removeFolders removes a folder and those below it, if it is there. The files of a cgroup go with its folder.
func removeFolders(top string) error {
	var folders []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, folder := range slices.Backward(folders) {
		err = errors.Join(err, os.Remove(folder))
	}
	return err
}
