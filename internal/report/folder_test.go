package report

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func prepare(t *testing.T, dir string) {
	t.Helper()
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
}

func TestWrittenReportReadsBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	prepare(t, dir)
	want := sample()
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !reflect.DeepEqual(got, []string{"junit.xml", "report.json", "summary.md"}) {
		t.Errorf("the report folder holds %q", got)
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back:\n%+v\nwant:\n%+v", got, want)
	}
}

func TestEmptyReportHasListsNotNull(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, Conclude(Report{})); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, JSONFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "null") {
		t.Errorf("report.json holds a null:\n%s", data)
	}
}

func TestPrepareRemovesTheOlderReportAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, sample()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	prepare(t, dir)
	if got := names(t, dir); !reflect.DeepEqual(got, []string{"mine.txt"}) {
		t.Errorf("after Prepare the folder holds %q, want only mine.txt", got)
	}
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no report in "+dir) {
		t.Errorf("reading the emptied folder gives %v", err)
	}
}

func TestPrepareRefusesWhatItCannotWriteTo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kept := t.TempDir()
	if err := os.MkdirAll(filepath.Join(kept, JSONFile, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		filepath.Join(file, "below"): "cannot be made",
		file:                         "cannot be made",
		"/proc/self":                 "cannot be written to",
		kept:                         "cannot be removed",
	} {
		err := Prepare(dir)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--report") {
			t.Errorf("Prepare(%s) gives %v, want an error with %q and the flag to use", dir, err, want)
		}
	}
}

func TestWriteRefusesAReportWithoutAVerdict(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, raw()); err == nil || len(names(t, dir)) != 0 {
		t.Errorf("writing a report that was not concluded gives %v and leaves %q", err, names(t, dir))
	}
}

func TestReadRefusesOtherFiles(t *testing.T) {
	for content, want := range map[string]string{
		`not json`:           "is not a report",
		`{"verdict":"pass"}`: `has the schema ""`,
		`{"schema":"parity.report/v2","cases":"x"}`:  `has the schema "parity.report/v2"`,
		`{"schema":"parity.report/v1","cases":"no"}`: "is not a report",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, JSONFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reading %s gives %v, want an error with %q", content, err, want)
		}
	}
}
