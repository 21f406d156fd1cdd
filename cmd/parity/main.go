// Command parity proves, with real MicroSandbox microVMs, that a workspace keeps its promises. See the README.
package main

import (
	"os"

	"dagger/parity/internal/cli"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/standin"
)

func main() {
	lab.Reexec()
	if standin.Called(os.Args[0]) {
		os.Exit(standin.Main(os.Args[1:]))
	}
	os.Exit(cli.Main(os.Args[1:]))
}
