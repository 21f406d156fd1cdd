// Command parity-runtime is the reference external runtime: a workspace CLI starts it and speaks Runtime Protocol v1 with it. See
// docs/runtime-protocol.md.
package main

import (
	"fmt"
	"os"

	"dagger/parity/internal/msbruntime"
	"dagger/parity/internal/runtimeserver"
)

const usage = `usage:
  parity-runtime --version
  parity-runtime serve    serve Runtime Protocol v1 to the workspace CLI that starts this program

The environment configures it: msb in PATH, or PARITY_MSB; MSB_HOME; the options of a machine, such as MICROSANDBOX_MEMORY; and for
images DOCKER_HOST, DOCKER_CONFIG and SSL_CERT_FILE.
`

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "--version":
			fmt.Println("parity-runtime", msbruntime.Version())
			return
		case "serve":
			if err := runtimeserver.Serve(msbruntime.New()); err != nil {
				fmt.Fprintln(os.Stderr, "parity-runtime: error:", err)
				os.Exit(1)
			}
			return
		}
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
}
