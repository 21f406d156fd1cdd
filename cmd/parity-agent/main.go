// Command parity-agent is what the reference CLI puts into a guest: an SSH server for one connection over its own standard
// input and output. It is static, and small because it is copied into every guest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/sshserver"
)

const usage = `usage:
  parity-agent --version
  parity-agent ssh --stdio [--dir FOLDER]   serve SSH on standard input and output until the client hangs up
  parity-agent run [--dir FOLDER] PROGRAM [ARGUMENT]...   become the program, given by its path

--dir: the folder in which commands run. It is made when it is missing.
--fault (ssh): the fault by which it is to misbehave, for Parity's self-test.
`

func main() {
	args := os.Args[1:]
	if len(args) == 1 && args[0] == "--version" {
		fmt.Println("parity-agent", version())
		return
	}
	if len(args) == 0 || args[0] != "ssh" && args[0] != "run" {
		fail(2, usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "")
	stdio, asked := false, ""
	if args[0] == "ssh" {
		flags.BoolVar(&stdio, "stdio", false, "")
		flags.StringVar(&asked, "fault", "", "")
	}
	err := flags.Parse(args[1:])
	switch {
	case err != nil:
		fail(2, err.Error()+"\n"+usage)
	case args[0] == "run" && flags.NArg() > 0:
		if err = enter(*dir); err == nil {
			err = syscall.Exec(flags.Arg(0), flags.Args(), os.Environ())
		}
	case stdio && flags.NArg() == 0:
		if err = enter(*dir); err == nil {
			err = serve(fault.Fault(asked))
		}
	default:
		fail(2, usage)
	}
	if err != nil {
		fail(1, err.Error()+"\n")
	}
}

// enter makes the folder the working folder. A user who may not make it works in the present one, and is told.
func enter(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		fmt.Fprintf(os.Stderr, "parity-agent: commands run in the default folder: %v\n", err)
		return nil
	}
	return os.Chdir(dir)
}

func serve(asked fault.Fault) error {
	// A signal ends the connection and, with it, the commands. Asked for signals also reach commands with their default action:
	// one that this process were left to ignore, they would ignore too. SIGPIPE must not end this process: a write to a
	// client that has gone is an error, and the commands are then ended in order.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return sshserver.Serve(ctx, standard{}, sshserver.Options{Rewrite: misbehave(asked)})
}

// standard is this process's standard input and output as one stream.
type standard struct{}

func (standard) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (standard) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
func (standard) Close() error                { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

func fail(code int, text string) {
	fmt.Fprint(os.Stderr, "parity-agent: "+text)
	os.Exit(code)
}
