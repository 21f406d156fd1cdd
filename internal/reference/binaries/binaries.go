// Package binaries brings the programs that a provider's manifest names to this machine: downloaded once, through a private cache,
// checked against their SHA-256 before each use, and installed all at once or not at all.
package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Store is where the programs of a workspace are, and the cache through which they come.
type Store struct {
	Dir      string // the programs of a workspace, each at <key>/<name>; absolute
	Cache    string // downloads, each at <SHA-256 of its URL>; absolute, and nobody else's
	Download Download
}

// Binary is a program.
type Binary struct {
	Key    string // the folder that it is in
	Name   string // of the file
	URL    string
	SHA256 string // 64 hex digits in lower case
}

// ChecksumError is what an error about a file is that is not the one that was asked for.
type ChecksumError struct {
	What           string // the file, or the URL
	Expected, Seen string
}

// Error names both checksums.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("checksum of %s: expected SHA-256 %s, seen %s", e.What, e.Expected, e.Seen)
}

// Install makes a program ready to run and gives its path. What is installed already and right is used without a request.
func (s Store) Install(ctx context.Context, b Binary) (string, error) {
	path, err := s.Resolve(b)
	if err == nil {
		return path, nil
	}
	cached, err := s.cached(ctx, b)
	if err != nil {
		return "", err
	}
	target := filepath.Join(s.Dir, b.Key, b.Name)
	if err := makeFolder(s.Dir, b.Key); err != nil {
		return "", fmt.Errorf("install %s: %w", b.Name, err)
	}
	source, err := os.Open(cached)
	if err != nil {
		return "", err
	}
	defer source.Close()
	// What is copied is checked again: the cache may have changed since.
	if err := place(source, target, 0o755, b.SHA256, cached); err != nil {
		return "", fmt.Errorf("install %s: %w", b.Name, err)
	}
	return s.Resolve(b)
}

// Resolve gives the path of a program that is installed, once it was checked. It never downloads. The path has no symbolic link below Dir, and
// ends at a regular file that can be executed and has the SHA-256.
func (s Store) Resolve(b Binary) (string, error) {
	if !filepath.IsAbs(s.Dir) {
		return "", fmt.Errorf("the folder of programs: expected an absolute path, seen %q", s.Dir)
	}
	path := filepath.Join(s.Dir, b.Key, b.Name)
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, b.Key)} {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", fmt.Errorf("the program %s: %w", b.Name, err)
		}
		if !info.IsDir() {
			return "", fmt.Errorf("the program %s: expected a folder at %s, seen %s", b.Name, dir, kind(info.Mode()))
		}
	}
	root, err := os.OpenRoot(s.Dir) // what is opened below it is in it
	if err != nil {
		return "", fmt.Errorf("the program %s: %w", b.Name, err)
	}
	defer root.Close()
	name := filepath.Join(b.Key, b.Name)
	info, err := root.Lstat(name)
	if err != nil {
		return "", fmt.Errorf("the program %s: %w", b.Name, err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("the program %s: expected a regular file at %s, seen %s", b.Name, path, kind(info.Mode()))
	}
	if info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("the program %s: expected a file that can be executed at %s, seen the mode %s", b.Name, path, info.Mode())
	}
	f, err := root.Open(name)
	if err != nil {
		return "", fmt.Errorf("the program %s: %w", b.Name, err)
	}
	defer f.Close()
	return path, check(f, path, b.SHA256)
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsRegular():
		return "a file"
	}
	return "something else"
}

// cached gives the path of a file in the cache that has the program's SHA-256, and downloads it when there is none.
func (s Store) cached(ctx context.Context, b Binary) (string, error) {
	if err := os.MkdirAll(s.Cache, 0o700); err != nil {
		return "", fmt.Errorf("the download cache: %w", err)
	}
	if info, err := os.Lstat(s.Cache); err != nil || !info.IsDir() {
		return "", fmt.Errorf("the download cache: expected a folder at %s: %w", s.Cache, err)
	} else if info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("the download cache: expected a folder that only its owner can write to at %s, seen the mode %s", s.Cache, info.Mode())
	}
	sum := sha256.Sum256([]byte(b.URL))
	path := filepath.Join(s.Cache, hex.EncodeToString(sum[:]))
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("the download cache: %w", err)
		}
		defer f.Close()
		if check(f, path, b.SHA256) == nil {
			return path, nil
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the download cache: %w", err)
	}
	err := s.Download.fetch(ctx, b.URL, func(body io.Reader) error {
		return place(body, path, 0o600, b.SHA256, Redacted(b.URL))
	})
	if err != nil {
		return "", fmt.Errorf("download %s: %w", b.Name, err)
	}
	return path, nil
}

// makeFolder makes dir/name, with no symbolic link from dir on.
func makeFolder(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("expected a folder at %s, seen %s", filepath.Join(dir, name), kind(info.Mode()))
	}
	return err
}

// place makes a file of what it reads, if that has the SHA-256: until all of it is there and was checked, there is no file, or the one that
// was there before.
func place(from io.Reader, path string, mode fs.FileMode, sum, what string) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, hash), from); err != nil {
		return err
	}
	if seen := hex.EncodeToString(hash.Sum(nil)); seen != sum {
		return &ChecksumError{What: what, Expected: sum, Seen: seen}
	}
	return f.CloseAtomicallyReplace()
}

func check(f io.Reader, what, sum string) error {
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if seen := hex.EncodeToString(hash.Sum(nil)); seen != sum {
		return &ChecksumError{What: what, Expected: sum, Seen: seen}
	}
	return nil
}
