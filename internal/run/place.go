package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/owned"
	"dagger/parity/internal/report"
	"dagger/parity/internal/runtimeclient"
)

// Place is what a run has of this machine besides its labs: the report's folder, which no other run may write at the same time, and a
// folder in the cache for its temporary files. If the run is killed, Clean finds both.
type Place struct {
	report string
	lock   *os.File // on the report's folder; nil where its file system has no locks
	folder *owned.Folder
}

// ErrReportFolder is what an error about the choice of the report's folder is.
var ErrReportFolder = errors.New("the report's folder cannot be used")

const (
	placePrefix = "run-"   // begins the names of the folders in the cache
	reportLink  = "report" // in such a folder: a link to the report's folder
)

// Occupy takes the report's folder, which it makes if need be, and makes the folder for temporary files. It is to be called before
// anything else of the run's is written. From then on this process's temporary files, and those of the programs that it starts, are
// made in the latter.
func Occupy(cache, report string) (*Place, error) {
	err := os.MkdirAll(report, 0o755)
	resolved := ""
	if err == nil {
		resolved, err = filepath.EvalSymlinks(report)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s cannot be made: %w; name another folder with --report", ErrReportFolder, report, err)
	}
	report = resolved
	p := &Place{report: report}
	if p.lock, err = owned.Hold(report); errors.Is(err, owned.ErrHeld) {
		return nil, fmt.Errorf("%w: another run that has not ended writes its report to %s; wait for its end, or name another folder with --report", ErrReportFolder, report)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("make the cache folder: %w", err), p.Leave())
	}
	if p.folder, err = owned.Make(cache, placePrefix); err == nil {
		if err = os.Symlink(report, filepath.Join(p.folder.Path, reportLink)); err == nil {
			err = os.Setenv("TMPDIR", p.folder.Path)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the run's folder in %s: %w; set PARITY_CACHE to a folder on a local file system", cache, err), p.Leave())
	}
	return p, nil
}

// Path is the run's own folder.
func (p *Place) Path() string { return p.folder.Path }

// Leave removes the run's folder and lets go of the report's.
func (p *Place) Leave() error {
	var err error
	if p.folder != nil {
		err = p.folder.Remove()
	}
	if p.lock != nil {
		p.lock.Close()
	}
	return err
}

// CleanReport removes the half-written files that a killed run left in the report's folder, and gives them.
func (p *Place) CleanReport() ([]string, error) {
	if p.lock == nil {
		return nil, nil // they may be a live run's
	}
	return removeHalfWritten(p.report)
}

// Clean removes what killed runs left: the folders of their labs in the cache, their own folders there, half-written files in their report
// folders, and folders of the sockets of external runtimes. It touches nothing of a live run's, which holds locks that die with it. It gives what it removed.
func Clean(cache string) ([]string, error) {
	removed, err := lab.Clean(cache)
	more, placeErr := owned.Clean(cache, placePrefix, func(dir string) ([]string, error) {
		report, err := os.Readlink(filepath.Join(dir, reportLink))
		if err != nil {
			return nil, nil // it was killed before it wrote there
		}
		lock, err := owned.Hold(report)
		if err != nil {
			return nil, nil // a live run has it now, and cleans it itself; or it is gone
		}
		defer lock.Close()
		return removeHalfWritten(report)
	})
	sockets, socketsErr := runtimeclient.Clean()
	return slices.Concat(removed, more, sockets), errors.Join(err, placeErr, socketsErr)
}

// halfWritten are the names of files that a report's folder has only while they are written.
var halfWritten = regexp.MustCompile(`^\.(parity-writable-|report\.json|junit\.xml|summary\.md|performance\.json)[0-9]+$`)

// halfTranscript are the names of such files in the folder of transcripts.
var halfTranscript = regexp.MustCompile(`^\.[a-z0-9-]+\.txt[0-9]+$`)

// removeHalfWritten removes half-written files from a report's folder, which must be locked.
func removeHalfWritten(dir string) (removed []string, err error) {
	removed, err = removeMatching(dir, halfWritten)
	more, moreErr := removeMatching(filepath.Join(dir, report.TranscriptFolder), halfTranscript)
	if errors.Is(moreErr, fs.ErrNotExist) {
		moreErr = nil // no run has written one
	}
	return append(removed, more...), errors.Join(err, moreErr)
}

// removeMatching removes the regular files of a folder whose names have a form.
func removeMatching(dir string, form *regexp.Regexp) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !form.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if removeErr := os.Remove(path); removeErr == nil {
			removed = append(removed, path)
		} else if !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return removed, err
}
