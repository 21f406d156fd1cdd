package standin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/probe"
)

// rightProbe is where the right probe program is put.
const rightProbe = "usr/local/lib/parity-probe"

// forgeProbe replaces the probe program of an image by one that says of every request of the
// workspace under test that it was refused, and makes none. For all else it runs the right one.
func forgeProbe(root *os.Root) error {
	right, err := root.ReadFile(images.ProbePath[1:])
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	refused := probe.TCP{Outcome: probe.OutcomeRefused, Stage: probe.StageConnect, Errno: "ECONNREFUSED", Detail: "connection refused"}
	forged := fmt.Appendf(nil, "#!/bin/sh\ncase \"$*\" in\ntcp*target-*) cat <<'END'\n%sEND\n;;\n*) exec /%s \"$@\" ;;\nesac\n", refused.Line(), rightProbe)
	return errors.Join(err, root.MkdirAll(path.Dir(rightProbe), 0o755), root.WriteFile(rightProbe, right, 0o755),
		root.WriteFile(images.ProbePath[1:], forged, 0o755))
}
