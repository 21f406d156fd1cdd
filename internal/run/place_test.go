package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/report"
)

// occupy is Occupy, for a test: it changes where this process's temporary files are made.
func occupy(t *testing.T, cache, report string) (*Place, error) {
	t.Helper()
	t.Setenv("TMPDIR", os.TempDir())
	return Occupy(cache, report)
}

func TestReportFolderIsOneRunsAtATimeByWhateverPath(t *testing.T) {
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	report, link := filepath.Join(dir, "a", "report"), filepath.Join(dir, "link")
	if err := os.Symlink(report, link); err != nil {
		t.Fatal(err)
	}
	first, err := occupy(t, cache, report)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := occupy(t, cache, link); !errors.Is(err, ErrReportFolder) || !strings.Contains(err.Error(), "--report") {
		t.Errorf("a second run took it: %v", err)
	}
	if err := first.Leave(); err != nil {
		t.Fatal(err)
	}
	second, err := occupy(t, cache, link)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Leave(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// Whatever a run writes for a moment is in its own folder, or removed from the report's by the next run with the same report.
func TestTemporaryFilesGoWithTheRunsFolder(t *testing.T) {
	report, cache := t.TempDir(), t.TempDir()
	p, err := occupy(t, cache, report)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp("", "x")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	half, foreign := filepath.Join(report, ".junit.xml12"), filepath.Join(report, ".junit.xml")
	for _, path := range []string{half, foreign} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := p.CleanReport()
	if err != nil || len(removed) != 1 || removed[0] != half {
		t.Errorf("removed %q, %v", removed, err)
	}
	if err := p.Leave(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file %s is left (%v)", f.Name(), err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a stranger's file is gone: %v", err)
	}
}

// BenchmarkCleanWithNothingToClean is the clean-up at the start of a run, with what a cache folder has on a machine that is set up, and three
// runs that are alive.
func BenchmarkCleanWithNothingToClean(b *testing.B) {
	cache := b.TempDir()
	for _, dir := range []string{"kernel/linux/boot", "microsandbox/0.7.2/bin", "msb-home"} {
		if err := os.MkdirAll(filepath.Join(cache, dir), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	b.Setenv("TMPDIR", os.TempDir())
	for range 3 {
		p, err := Occupy(cache, b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		defer p.Leave()
	}
	p, err := Occupy(cache, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Leave()
	for b.Loop() {
		mine, err := p.CleanReport()
		others, cleanErr := Clean(cache)
		if err := errors.Join(err, cleanErr); err != nil || len(mine)+len(others) > 0 {
			b.Fatalf("removed %q %q, %v", mine, others, err)
		}
	}
}

// A killed run can leave a half-written transcript. Whole ones stay, as a report's other files do.
func TestHalfWrittenTranscriptsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, report.TranscriptFolder)
	if removed, err := removeHalfWritten(dir); err != nil || len(removed) != 0 {
		t.Errorf("without transcripts: %v, %v", removed, err)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(folder, ".egress-builtin-deny.txt123")
	for _, file := range []string{half, filepath.Join(folder, "egress-builtin-deny.txt"), filepath.Join(folder, ".notes.txt")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := removeHalfWritten(dir); err != nil || len(removed) != 1 || removed[0] != half {
		t.Errorf("%v, %v; want %s", removed, err, half)
	}
}
