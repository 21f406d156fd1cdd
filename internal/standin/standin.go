// Package standin is a program that stands in for msb, MicroSandbox's command line, where a fault must be provoked or a test must be
// fast. It has the commands, flags, exit codes, texts and JSON of msb 0.7.2 as far as package msb uses them (msbtest holds both to
// the same assertions), and it needs no KVM. It proves nothing of MicroSandbox, so it says in its version what it is.
//
// Its guests are processes in network, mount, PID, UTS and IPC namespaces of their own, with an overlay over the unpacked image as
// their root. A guest has three parts:
//
//   - the keeper, in the namespaces of whoever started it: it starts the init, relays the guest's connections, and ends with it;
//   - the init, PID 1 of the guest: it mounts and configures what a guest sees, runs commands and reaps;
//   - the commands, which get the standard streams of `msb exec` itself.
//
// Ending the keeper ends the guest, and so does ending the namespaces in which the keeper runs: run it in a lab. A sandbox runs as
// long as a lock that both the keeper and the init hold is held; everything else is in JSON files below MSB_HOME.
//
// The program honours PARITY_FAULT (package fault).
package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/pflag"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
)

// Program is the base name of argv[0] by which a program that has this one built in is run as the stand-in, besides "msb".
const Program = "msb-standin"

// Called tells whether a program that has this one built in was called as the stand-in: it is to run Main then.
func Called(argv0 string) bool {
	name := filepath.Base(argv0)
	return name == Program || name == "msb"
}

// Install makes dir/msb, an msb that is the stand-in, and gives its path. The running program must be one that heeds Called.
func Install(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "msb")
	return path, errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(self, path))
}

// Version is what the stand-in says its version is: that of the MicroSandbox it stands in for, and what it is.
func Version() string { return msb.PinnedRelease().Version + "+standin" }

// The commands by which the program runs itself again.
const (
	commandKeeper = "standin-keeper"
	commandInit   = "standin-init"
)

// Main runs the command in args, which are without the program's name, and gives the exit code: 1 for a failure and 2 for bad usage,
// as msb does, or that of a command in a guest. It re-executes the running program as Program.
func Main(args []string) int {
	if len(args) == 1 {
		switch args[0] {
		case commandKeeper:
			return keeperMain()
		case commandInit:
			return initMain()
		}
	}
	err := fault.Check()
	if err == nil {
		err = run(args, os.Stdout)
	}
	var exit exitCode
	var bad *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &bad):
		fmt.Fprintf(os.Stderr, "error: %s\n\nUsage: %s\n\nFor more information, try '--help'.\n", bad.message, bad.usage)
		return 2
	}
	fmt.Fprintf(os.Stderr, "error: %v\n", err)
	return 1
}

// exitCode is the exit code of a command in a guest, which has said itself what there was to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is what the caller did wrong, in the words of msb's argument parser.
type usageError struct{ message, usage string }

func (e *usageError) Error() string { return e.message }

// command is one of msb's commands.
type command struct {
	usage    string   // what follows "msb "
	operands []string // the names of its positional arguments
	rest     bool     // more may follow the operands
	flags    func(*pflag.FlagSet)
	run      func(s store, args []string, out io.Writer) error
}

func run(args []string, out io.Writer) error {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if name == "--version" {
		_, err := fmt.Fprintln(out, "msb", Version())
		return err
	}
	if name == "image" && len(args) > 0 {
		name, args = name+" "+args[0], args[1:]
	}
	c, ok := commands()[name]
	if !ok {
		return &usageError{"unrecognized subcommand '" + name + "'", "msb [OPTIONS] <COMMAND>"}
	}
	args, err := c.parse(name, args)
	if err != nil {
		return err
	}
	s, err := openStore()
	if err != nil {
		return err
	}
	return c.run(s, args, out)
}

// parse sets the command's flags and gives the other arguments.
func (c command) parse(name string, args []string) ([]string, error) {
	fail := func(format string, args ...any) ([]string, error) {
		return nil, &usageError{fmt.Sprintf(format, args...), "msb " + c.usage}
	}
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	if c.flags != nil {
		c.flags(flags)
	}
	err := flags.Parse(args)
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &unknown):
		return fail("unexpected argument '--%s' found", unknown.GetSpecifiedName())
	case err != nil:
		return fail("%v", err)
	case flags.NArg() < len(c.operands):
		return fail("the following required arguments were not provided:\n  <%s>", strings.Join(c.operands[flags.NArg():], ">\n  <"))
	case flags.NArg() > len(c.operands) && !c.rest:
		return fail("unexpected argument '%s' found", flags.Arg(len(c.operands)))
	}
	return flags.Args(), nil
}

// commands are the commands by name. Each call gives fresh flags.
func commands() map[string]command {
	var o createOptions
	var as execOptions
	var force, quiet, stream bool
	var format, input, tag string
	var from pullOptions
	jsonOnly := func(f *pflag.FlagSet) { f.StringVar(&format, "format", "", "") }
	isQuiet := func(f *pflag.FlagSet) { f.BoolVarP(&quiet, "quiet", "q", false, "") }
	inJSON := func(out io.Writer, v any, err error) error {
		if err != nil {
			return err
		}
		if format != "json" {
			return errors.New("the stand-in for msb prints JSON only: give --format json")
		}
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	// done tells the user, on standard error as msb does.
	done := func(what, name string, err error) error {
		if err == nil && !quiet {
			fmt.Fprintf(os.Stderr, "   ✓ %-12s %s\n", what, name)
		}
		return err
	}
	return map[string]command{
		"doctor": {usage: "doctor", run: func(s store, _ []string, _ io.Writer) error {
			fmt.Fprintf(os.Stderr, "info Platform: Linux %s\ninfo Version: v%s\ninfo MSB_HOME: %s\ndone This stands in for msb: its sandboxes need no KVM.\n",
				runtime.GOARCH, Version(), s.home)
			return nil
		}},
		"create": {usage: "create [OPTIONS] <IMAGE>", operands: []string{"IMAGE"},
			flags: func(f *pflag.FlagSet) { isQuiet(f); o.flags(f) },
			run: func(s store, args []string, _ io.Writer) error {
				o.image = args[0]
				return s.create(o)
			}},
		"start": {usage: "start [OPTIONS] <NAME>", operands: []string{"NAME"}, flags: isQuiet,
			run: func(s store, args []string, _ io.Writer) error { return done("Started", args[0], s.start(args[0])) }},
		"stop": {usage: "stop [OPTIONS] <NAME>", operands: []string{"NAME"}, flags: isQuiet,
			run: func(s store, args []string, _ io.Writer) error { return done("Stopped", args[0], s.stop(args[0])) }},
		"remove": {usage: "remove [OPTIONS] <NAME>", operands: []string{"NAME"},
			flags: func(f *pflag.FlagSet) { isQuiet(f); f.BoolVarP(&force, "force", "f", false, "") },
			run: func(s store, args []string, _ io.Writer) error {
				return done("Removed", args[0], s.remove(args[0], force))
			}},
		"inspect": {usage: "inspect [OPTIONS] <NAME>", operands: []string{"NAME"}, flags: jsonOnly,
			run: func(s store, args []string, out io.Writer) error {
				v, err := s.inspect(args[0])
				return inJSON(out, v, err)
			}},
		"list": {usage: "list [OPTIONS]", flags: jsonOnly,
			run: func(s store, _ []string, out io.Writer) error {
				v, err := s.list()
				return inJSON(out, v, err)
			}},
		"exec": {usage: "exec [OPTIONS] <NAME> -- <COMMAND>...", operands: []string{"NAME", "COMMAND"}, rest: true,
			flags: func(f *pflag.FlagSet) {
				isQuiet(f)
				f.BoolVar(&stream, "stream", false, "")
				f.SetInterspersed(true)
				as.flags(f)
			},
			run: func(s store, args []string, _ io.Writer) error { return s.exec(args[0], as, args[1:]) }},
		"copy": {usage: "copy [OPTIONS] <SOURCE> <DESTINATION>", operands: []string{"SOURCE", "DESTINATION"},
			run: func(s store, args []string, _ io.Writer) error { return s.copyIn(args[0], args[1]) }},
		"load": {usage: "load [OPTIONS]",
			flags: func(f *pflag.FlagSet) {
				isQuiet(f)
				f.StringVarP(&input, "input", "i", "", "")
				f.StringVarP(&tag, "tag", "t", "", "")
			},
			run: func(s store, _ []string, _ io.Writer) error {
				loaded, err := s.load(input, tag)
				for _, ref := range loaded {
					err = done("Loaded", ref, err)
				}
				return err
			}},
		"pull": {usage: "pull [OPTIONS] <REFERENCE>", operands: []string{"REFERENCE"},
			flags: func(f *pflag.FlagSet) { isQuiet(f); from.flags(f) },
			run:   func(s store, args []string, _ io.Writer) error { return done("Pulled", args[0], s.pull(args[0], from)) }},
		"image ls": {usage: "image ls [OPTIONS]", flags: jsonOnly,
			run: func(s store, _ []string, out io.Writer) error {
				v, err := s.listImages()
				return inJSON(out, v, err)
			}},
		"image inspect": {usage: "image inspect [OPTIONS] <REFERENCE>", operands: []string{"REFERENCE"}, flags: jsonOnly,
			run: func(s store, args []string, out io.Writer) error {
				v, err := s.inspectImage(args[0])
				return inJSON(out, v, err)
			}},
		"image rm": {usage: "image rm [OPTIONS] <REFERENCES>...", operands: []string{"REFERENCES"}, rest: true,
			flags: isQuiet,
			run: func(s store, args []string, _ io.Writer) error {
				return done("Removed", strings.Join(args, " "), s.removeImages(args))
			}},
	}
}
