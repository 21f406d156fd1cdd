package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// ledger is a folder of records, one for each reference. It is beside MicroSandbox's store, and goes with it.
type ledger struct{ dir string }

// record says what was brought into the store under a reference.
type record struct {
	Reference string `json:"reference"`
	Source    string `json:"source"`           // the identity of what was brought
	Digest    string `json:"digest,omitempty"` // of what the store made of it; empty as long as that is not known
}

// isOf tells whether what the store has under the reference, by its digest, was brought by this package. As long as it is not known what
// the store made of it, it is taken to be.
func (r record) isOf(digest string) bool {
	return digest != "" && r.Source != "" && (r.Digest == "" || r.Digest == digest)
}

func (l ledger) file(ref, ending string) string {
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(l.dir, hex.EncodeToString(sum[:16])+ending)
}

// read gives the record of a reference; an empty one if there is none, or if it cannot be understood: the image is brought again then.
func (l ledger) read(ref string) (r record, err error) {
	text, err := os.ReadFile(l.file(ref, ".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil && json.Unmarshal(text, &r) != nil {
		r = record{Reference: ref, Source: "unknown"}
	}
	return r, err
}

func (l ledger) write(r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(l.file(r.Reference, ".json"), append(text, '\n'), 0o600)
}

// lock waits until nobody else brings the image of a reference. It works between processes, and ends with this one.
func (l ledger) lock(ctx context.Context, ref string) (unlock func(), err error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(l.file(ref, ".lock"))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return nil, fmt.Errorf("wait for another command to bring the image %s: %w", ref, err)
	}
	return func() { _ = lock.Unlock() }, nil
}
