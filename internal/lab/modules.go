package lab

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// modules finds kernel modules by name in a folder of plain .ko files.
type modules struct {
	root  string
	paths map[string]string // by the module's name, with dashes as underscores
}

func openModules(root string) (*modules, error) {
	m := &modules{root: root, paths: map[string]string{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); err == nil && ok {
			m.paths[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for kernel modules: %w", err)
	}
	return m, nil
}

// resolve gives the files of the named modules and of all that they depend on, in the order in which they load. A module that
// is not there is taken to be built into the kernel: if it is not, loading what depends on it fails by name.
func (m *modules) resolve(names ...string) ([]string, error) {
	var order []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = moduleName(name)
		path, ok := m.paths[name]
		if seen[name] || !ok {
			return nil
		}
		seen[name] = true
		needs, err := moduleDepends(path)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleDepends reads what a module says of itself: there is no modules.dep, as the kernel package is extracted and not installed.
func moduleDepends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("kernel module %s has no .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", path, err)
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(entry), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
