package step

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
)

// Trial boots one tiny microVM with the msb executable, runs a command in it and removes it. It runs in a native lab, to see whether
// this machine's KVM can boot a kernel at all.
func Trial(ctx context.Context, path string) (err error) {
	scratch := os.Getenv(lab.EnvScratch)
	if scratch == "" {
		return fmt.Errorf("%s is not set: a trial runs in a lab", lab.EnvScratch)
	}
	var cleanup cases.Cleanup
	defer func() { err = errors.Join(append(cleanup.Run(), err)...) }()
	if _, err := cases.NewLink("trial", &cleanup); err != nil {
		return err
	}
	img, err := images.Build(images.Spec{Nonce: "trial"})
	if err != nil {
		return err
	}
	const ref, name = "parity.test/trial:1", "trial"
	archive := filepath.Join(scratch, "trial.tar")
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		return err
	}
	client := msb.Client{Path: path, Home: filepath.Join(scratch, "t")}
	if err := client.Load(ctx, archive); err != nil {
		return err
	}
	cleanup.Add("the trial's sandbox", func(ctx context.Context) error { return client.Remove(ctx, name) })
	if err := client.Create(ctx, msb.CreateOptions{Name: name, Image: ref, CPUs: 1, MemoryMiB: 256}); err != nil {
		return err
	}
	_, err = client.Exec(ctx, name, []string{"/bin/true"}, nil)
	return err
}
