// Command parity proves, with real MicroSandbox microVMs, that a workspace keeps its promises. See the README.
package main

import (
	"os"

	"dagger/parity/internal/cli"
	"dagger/parity/internal/lab"
)

func main() {
	lab.Reexec()
	os.Exit(cli.Main(os.Args[1:]))
}
