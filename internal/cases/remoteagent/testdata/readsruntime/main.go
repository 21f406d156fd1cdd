// Command readsruntime is an external runtime for a test: the reference one, which reads the config
// of a machine's image from the image's registry before it makes the machine. On a remote machine,
// it does so from there.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"dagger/parity/internal/msbruntime"
	"dagger/parity/internal/reference/registry"
	pb "dagger/parity/internal/runtimeproto"
	"dagger/parity/internal/runtimeserver"
)

type runtime struct{ *msbruntime.Runtime }

// Run reads the config, and makes the machine.
func (r runtime) Run(ctx context.Context, request *pb.RunImageRequest) error {
	reading, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := registry.Find(reading, request.GetImage()); err != nil {
		return fmt.Errorf("read the image's config: %w", err)
	}
	return r.Runtime.Run(ctx, request)
}

func main() {
	if err := runtimeserver.Serve(runtime{msbruntime.New()}); err != nil {
		fmt.Fprintln(os.Stderr, "readsruntime: error:", err)
		os.Exit(1)
	}
}
