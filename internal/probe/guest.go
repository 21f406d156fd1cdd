package probe

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
)

// ReadBootID reports the running kernel's boot id, its uptime and the host name.
func ReadBootID() (BootID, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return BootID{}, err
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return BootID{}, err
	}
	first, _, _ := strings.Cut(string(uptime), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return BootID{}, errors.New("/proc/uptime: " + err.Error())
	}
	name, err := os.Hostname()
	if err != nil {
		return BootID{}, err
	}
	return BootID{BootID: strings.TrimSpace(string(id)), UptimeSeconds: seconds, Hostname: name}, nil
}

// WriteMarker writes value to the file at the absolute path, with the folders that are missing, and returns once the file and
// each folder that got a new entry are on the disk. It reports what a read then sees.
func WriteMarker(file, value string) (Marker, error) {
	existing, err := openNearest(path.Dir(file))
	if err != nil {
		return Marker{}, err
	}
	defer existing.Close()
	if err := os.MkdirAll(path.Dir(file), 0o755); err != nil {
		return Marker{}, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return Marker{}, err
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return Marker{}, err
	}
	for dir := path.Dir(file); dir != existing.Name(); dir = path.Dir(dir) {
		if err := syncFolder(dir); err != nil {
			return Marker{}, err
		}
	}
	if err := existing.Sync(); err != nil {
		return Marker{}, err
	}
	return ReadMarker(file)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadMarker reports the file at the absolute path. A file that does not exist is no error.
func ReadMarker(file string) (Marker, error) {
	m := Marker{Path: file}
	f, err := openNearest(file)
	if err != nil {
		return Marker{}, err
	}
	defer f.Close()
	if m.Exists = f.Name() == path.Clean(file); m.Exists {
		value, err := io.ReadAll(io.LimitReader(f, maxBytes))
		if err != nil {
			return Marker{}, err
		}
		m.Value = string(value)
	}
	m.MountPoint, m.FSType, err = mountOf(f)
	m.RootDevice = m.MountPoint == "/"
	return m, err
}

// openNearest opens the file at the absolute path or, where it does not exist, the nearest folder above it that does.
func openNearest(file string) (*os.File, error) {
	for file = path.Clean(file); ; file = path.Dir(file) {
		f, err := os.Open(file)
		if !errors.Is(err, os.ErrNotExist) || file == "/" {
			return f, err
		}
	}
}

// mountOf says which mount an open file is on. It goes by the mount's id, which is right also where the path has symbolic links
// or where one mount hides another.
func mountOf(f *os.File) (mountPoint, fsType string, err error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", "", err
	}
	_, after, _ := strings.Cut(string(info), "mnt_id:")
	id, _, _ := strings.Cut(after, "\n")
	id = strings.TrimSpace(id)
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(table)) {
		// id parent major:minor root mount-point options [tags...] - type source options
		fields := strings.Fields(line)
		_, after, _ := strings.Cut(line, " - ")
		if kind, _, ok := strings.Cut(after, " "); ok && len(fields) > 4 && fields[0] == id {
			return unescape(fields[4]), kind, nil
		}
	}
	return "", "", errors.New("/proc/self/mountinfo has no mount " + strconv.Quote(id) + ", which holds " + f.Name())
}

// unescape undoes the octal escapes of mountinfo, such as \040 for a space.
func unescape(s string) string {
	var b []byte
	for len(s) > 0 {
		if len(s) >= 4 && s[0] == '\\' {
			if c, err := strconv.ParseUint(s[1:4], 8, 8); err == nil {
				b, s = append(b, byte(c)), s[4:]
				continue
			}
		}
		b, s = append(b, s[0]), s[1:]
	}
	return string(b)
}
