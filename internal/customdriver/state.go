package customdriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// state is what MicroSandbox does not keep of a machine.
type state struct {
	Labels    map[string]string `json:"labels"`
	Command   []string          `json:"command"` // what runs in the machine as long as it is up
	Folders   []string          `json:"folders"` // the targets of its volumes
	StartedAt time.Time         `json:"startedAt"`
}

// states is the folder with a file for each machine.
type states struct{ dir string }

func (s states) file(machine string) string { return filepath.Join(s.dir, machine+".json") }

// read gives the state of a machine. One that somebody else has made has none.
func (s states) read(machine string) (v state, err error) {
	text, err := os.ReadFile(s.file(machine))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("%s: %w; delete the workspace and bring it up again", s.file(machine), err)
	}
	return v, nil
}

func (s states) write(machine string, v state) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(s.file(machine), append(text, '\n'), 0o600)
}

func (s states) remove(machine string) error {
	if err := os.Remove(s.file(machine)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
