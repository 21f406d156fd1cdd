// Command program is the fake runtime as a program of its own.
package main

import (
	"os"

	"dagger/parity/internal/runtimefake"
)

func main() { os.Exit(runtimefake.Main()) }
