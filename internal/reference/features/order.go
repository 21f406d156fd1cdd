package features

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// order puts Features in the order of their installation, as the specification's rounds do: of those whose dependencies are installed, the
// ones that "overrideFeatureInstallOrder" has first go first, and else all of them, by their folders and options.
func order(found map[string]Feature, override []string) ([]Feature, error) {
	priority, err := priorities(found, override)
	if err != nil {
		return nil, err
	}
	var installed []Feature
	waiting := maps.Clone(found)
	for len(waiting) > 0 {
		var round []string
		highest := 0
		for _, key := range slices.Sorted(maps.Keys(waiting)) {
			if !free(waiting[key], waiting) {
				continue
			}
			if p := priority[key]; p > highest || len(round) == 0 {
				round, highest = []string{key}, p
			} else if p == highest {
				round = append(round, key)
			}
		}
		if len(round) == 0 {
			return nil, cycle(waiting)
		}
		for _, key := range round {
			installed = append(installed, waiting[key])
		}
		for _, key := range round {
			delete(waiting, key)
		}
	}
	return installed, nil
}

// priorities gives the priority of each Feature that the list names: the higher, the earlier.
func priorities(found map[string]Feature, override []string) (map[string]int, error) {
	priority := map[string]int{}
	for i, ref := range override {
		known := false
		for key, f := range found {
			if f.isNamed(ref) {
				known = true
				priority[key] = max(priority[key], len(override)-i)
			}
		}
		if !known {
			return nil, fmt.Errorf("overrideFeatureInstallOrder: %q is none of the Features that are to be installed", ref)
		}
	}
	return priority, nil
}

// isNamed tells whether a Feature is meant by what names one without its options: its folder, or its id.
func (f Feature) isNamed(ref string) bool {
	return strings.HasPrefix(ref, "./") && path.Clean(ref) == f.Path || ref == path.Base(f.Path)
}

// free tells whether nothing that a Feature waits for is still to be installed.
func free(f Feature, waiting map[string]Feature) bool {
	return len(awaited(f, waiting)) == 0
}

// awaited gives the keys of what a Feature waits for.
func awaited(f Feature, waiting map[string]Feature) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(waiting)) {
		soft := slices.ContainsFunc(f.installsAfter, waiting[key].isNamed)
		if soft || slices.Contains(f.dependsOn, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// cycle names a circle among Features none of which is free.
func cycle(waiting map[string]Feature) error {
	key := slices.Sorted(maps.Keys(waiting))[0]
	var way []string
	for !slices.Contains(way, key) {
		way = append(way, key)
		key = awaited(waiting[key], waiting)[0]
	}
	text := ""
	for _, k := range append(way[slices.Index(way, key):], key) {
		text += " -> ./" + waiting[k].Path
	}
	return fmt.Errorf("installsAfter and dependsOn make a circle, so that there is no order of installation:%s", strings.TrimPrefix(text, " ->"))
}
