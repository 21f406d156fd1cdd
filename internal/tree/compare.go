package tree

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rules say what Compare compares. Paths are as Entry has them.
type Rules struct {
	Exactly []string // at and below these paths nothing but what is wanted may be there; elsewhere more may be
	Except  []string // what is at and below these paths is not compared
}

// Difference says how one entry is not as it was wanted.
type Difference struct {
	Path       string
	Want, Seen string // in words: all of an entry that only one list has, or else the fields that differ
}

// String says it in one line.
func (d Difference) String() string {
	return fmt.Sprintf("%q: expected %s, seen %s", d.Path, d.Want, d.Seen)
}

// Compare compares what is seen with what is wanted, and gives the differences in the order of their paths. Which names are one file is
// compared among the paths that both lists have, and a difference in that is told once, of the first of the names.
func Compare(want, seen []Entry, r Rules) []Difference {
	wanted, there := byPath(want), byPath(seen)
	var found []Difference
	var both []string
	for name, w := range wanted {
		if Under(name, r.Except) {
			continue
		}
		s, ok := there[name]
		if !ok {
			found = append(found, Difference{name, describe(w), "nothing"})
			continue
		}
		if d, differ := compareEntries(w, s); differ {
			found = append(found, d)
		}
		both = append(both, name)
	}
	for name, s := range there {
		if _, ok := wanted[name]; !ok && Under(name, r.Exactly) && !Under(name, r.Except) {
			found = append(found, Difference{name, "nothing", describe(s)})
		}
	}
	found = append(found, compareLinks(wanted, there, both)...)
	slices.SortStableFunc(found, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return found
}

func byPath(list []Entry) map[string]Entry {
	m := make(map[string]Entry, len(list))
	for _, e := range list {
		m[e.Path] = e
	}
	return m
}

// compareEntries compares two entries of one path in all but their links.
func compareEntries(want, seen Entry) (Difference, bool) {
	if want.Type != seen.Type {
		return Difference{want.Path, describe(want), describe(seen)}, true
	}
	var w, s []string
	a, b := fields(want), fields(seen)
	for i := range a {
		if a[i] != b[i] {
			w, s = append(w, a[i]), append(s, b[i])
		}
	}
	return Difference{want.Path, strings.Join(w, ", "), strings.Join(s, ", ")}, len(w) > 0
}

// fields are an entry's fields in words, save for its path, its type and its links. Entries of one type have the same fields.
func fields(e Entry) []string {
	if e.Type == Mount {
		return nil
	}
	f := []string{fmt.Sprintf("mode %04o", e.Mode), fmt.Sprintf("owner %d:%d", e.UID, e.GID)}
	switch e.Type {
	case File:
		f = append(f, fmt.Sprintf("%d bytes", e.Size), "SHA-256 "+e.SHA256)
	case Symlink:
		f = append(f, fmt.Sprintf("target %q", e.Target))
	}
	return f
}

func describe(e Entry) string {
	return strings.Join(append([]string{"a " + strings.ReplaceAll(string(e.Type), "-", " ")}, fields(e)...), ", ")
}

// compareLinks compares, among the given paths, which of them are one file.
func compareLinks(want, seen map[string]Entry, among []string) (found []Difference) {
	slices.Sort(among)
	w, s := groups(want, among), groups(seen, among)
	told := map[string]bool{}
	for _, name := range among {
		a, b := w[name], s[name]
		if slices.Equal(a, b) {
			continue
		}
		about := a // the group that was torn apart, or else the one that came about
		if len(a) == 1 {
			about = b
		}
		if !told[about[0]] {
			told[about[0]] = true
			found = append(found, Difference{name, describeGroup(a, name), describeGroup(b, name)})
		}
	}
	return found
}

// groups gives, for each of the paths, those of them that are the same file, itself included, in the order of the paths.
func groups(list map[string]Entry, among []string) map[string][]string {
	byFirst := map[string][]string{}
	for _, name := range among {
		first := cmp.Or(list[name].LinkTo, name)
		byFirst[first] = append(byFirst[first], name)
	}
	byName := make(map[string][]string, len(among))
	for _, group := range byFirst {
		for _, name := range group {
			byName[name] = group
		}
	}
	return byName
}

// describeGroup says with which other names a name is one file.
func describeGroup(group []string, name string) string {
	const most = 3
	var others []string
	for _, other := range group {
		if other != name {
			others = append(others, strconv.Quote(other))
		}
	}
	switch {
	case len(others) == 0:
		return "a file of its own"
	case len(others) > most:
		return fmt.Sprintf("one file with %s and %d more", strings.Join(others[:most], ", "), len(others)-most)
	}
	return "one file with " + strings.Join(others, ", ")
}
