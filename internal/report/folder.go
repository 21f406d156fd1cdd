package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// The files of a report folder.
const (
	JSONFile        = "report.json"
	JUnitFile       = "junit.xml"
	SummaryFile     = "summary.md"
	PerformanceFile = "performance.json" // only of a run with a case that measures
)

// Prepare makes dir ready for a run's report: it creates dir, shows that a file can be written there, and removes the
// files of an older run, and nothing else, so that a run that dies leaves no report rather than another run's. Call it
// before the run starts. Every error is about the choice of dir.
func Prepare(dir string) error {
	const other = "name another folder with --report"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the report folder %s cannot be made: %w; %s", dir, err, other)
	}
	probe, err := os.CreateTemp(dir, ".parity-writable-")
	if err == nil {
		err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	}
	if err != nil {
		return fmt.Errorf("the report folder %s cannot be written to: %w; %s", dir, err, other)
	}
	if err := removeTranscripts(dir); err != nil {
		return fmt.Errorf("an older run's transcripts cannot be removed: %w; remove them, or %s", err, other)
	}
	for _, name := range []string{JSONFile, JUnitFile, SummaryFile, PerformanceFile} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.IsDir() {
			return fmt.Errorf("an older run's report cannot be removed: %s in %s is a folder; remove it, or %s", name, dir, other)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("an older run's report cannot be removed: %w; remove it, or %s", err, other)
		}
	}
	return nil
}

// Write writes a concluded report to dir as report.json, junit.xml and summary.md, and as performance.json when a case measured
// something; if none did, it removes that of an older run. Each file appears whole or not at all; report.json comes last, so that
// where it is, the others are.
func Write(dir string, r Report) error {
	if r.Schema != Schema {
		return errors.New("report: Write needs a report that Conclude gave")
	}
	var junit, summary bytes.Buffer
	if err := writeJUnit(&junit, r); err != nil {
		return fmt.Errorf("make %s: %w", JUnitFile, err)
	}
	writeSummary(&summary, r)
	data, err := indented(r)
	if err != nil {
		return fmt.Errorf("make %s: %w", JSONFile, err)
	}
	if err := writePerformance(dir, r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for _, file := range []struct {
		name string
		data []byte
	}{{JUnitFile, junit.Bytes()}, {SummaryFile, summary.Bytes()}, {JSONFile, data}} {
		if err := renameio.WriteFile(filepath.Join(dir, file.name), file.data, 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return nil
}

// writePerformance writes what was measured, or sees to it that nothing is there.
func writePerformance(dir string, r Report) error {
	path := filepath.Join(dir, PerformanceFile)
	p := performanceOf(r)
	if p == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := indented(p)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, data, 0o644)
}

// indented gives a value as JSON that people can read too.
func indented(v any) ([]byte, error) {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return data.Bytes(), err
}

// Read reads the report.json of dir. It refuses a file of another schema.
func Read(dir string) (Report, error) {
	path := filepath.Join(dir, JSONFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("no report in %s: %w; a run that finished leaves one there", dir, err)
	}
	if err != nil {
		return Report{}, fmt.Errorf("read the report: %w", err)
	}
	r, err := Parse(data)
	if err != nil {
		return Report{}, fmt.Errorf("%s %w", path, err)
	}
	return r, nil
}

// Parse gives the report of which data is the report.json. It refuses one of another schema. The error goes on after the file's name.
func Parse(data []byte) (Report, error) {
	// The schema is looked at first: a report of another one may not even fit the types.
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Report{}, fmt.Errorf("is not a report: %w", err)
	}
	if head.Schema != Schema {
		return Report{}, fmt.Errorf("has the schema %q, and this program reads %q; read it with the program that wrote it", head.Schema, Schema)
	}
	var r Report
	if err := json.Unmarshal(data, &r); err != nil {
		return Report{}, fmt.Errorf("is not a report: %w", err)
	}
	return r, nil
}
