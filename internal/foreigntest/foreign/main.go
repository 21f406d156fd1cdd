// Command foreign is a workspace CLI for tests: it does what the reference CLI does, and says it in
// another way. It has other verbs, flags, JSON, exit codes and state paths, and it wants of its
// surroundings what real CLIs want. It is no part of Parity, which knows it by an adapter only
// (testdata/foreign.yaml).
//
// Each thing that it wants or does otherwise is a trait. The traits that it lacks stand at the end
// of its own file, after "foreign-without:": so it lacks them on a remote machine, too, where it is
// the agent.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/reference"
)

// The exit codes.
const (
	exitEnded   = 1 // enter: the command in the guest did not end with 0
	exitMissing = 4
	exitFailure = 9
)

// delay is how long each command takes besides what it does.
const delay = 300 * time.Millisecond

func main() {
	if len(os.Args) > 1 && os.Args[1] == "devsy" { // how the reference CLI starts its agent on a remote machine
		os.Exit(agent(os.Args[2:]))
	}
	root := group("foreign", group("space", open(), enter(), pipe(), halt(), show(), all(), drop()), group("source", add(), remove()))
	root.SilenceErrors, root.SilenceUsage = true, true
	if has(traitSlow) {
		time.Sleep(delay)
	}
	err := root.Execute()
	var exit *exit
	switch {
	case errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, "foreign:", exit.text)
		os.Exit(exit.code)
	case err != nil:
		fmt.Fprintln(os.Stderr, "foreign:", err)
		os.Exit(exitFailure)
	}
}

// exit is an error with an exit code of its own.
type exit struct {
	code int
	text string
}

func (e *exit) Error() string { return e.text }

func group(name string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, RunE: func(_ *cobra.Command, args []string) error { return fmt.Errorf("unknown command %q", args) }}
	c.AddCommand(commands...)
	return c
}

func command(use string, args int, run func(args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Args: cobra.ExactArgs(args), RunE: func(_ *cobra.Command, args []string) error { return run(args) }}
}

// result prints the line that counts, after a line that does not.
func result(key string, value any) error {
	for _, line := range []map[string]any{{"event": "log", "text": "done in a moment"}, {"event": "result", key: value}} {
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", text)
	}
	return nil
}

// ours is a command of the reference CLI, with the streams of its own; nil is none.
type ours struct {
	in       io.Reader
	out, err io.Writer
}

// run runs the command and returns its exit code.
func (o ours) run(args ...string) int {
	home := filepath.Join(os.Getenv("FOREIGN_HOME"), "spaces", "v2")
	if err := os.Setenv("DEVSY_HOME", home); err != nil {
		return exitFailure
	}
	c := reference.Command("devsy")
	c.SetArgs(args)
	c.SetIn(o.in)
	c.SetOut(o.out)
	c.SetErr(o.err)
	var ended *reference.Exit
	err := c.Execute()
	if errors.As(err, &ended) {
		return ended.Code
	}
	if err != nil {
		return exitFailure
	}
	return 0
}

// theirMissing is the reference CLI's exit code of a workspace that does not exist.
const theirMissing = 75

// quietly runs a command of the reference CLI for its answer, which goes to standard error if there
// is none.
func quietly(args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	switch code := (ours{out: &out, err: &errs}).run(args...); code {
	case 0:
		return out.Bytes(), nil
	case theirMissing:
		return nil, &exit{exitMissing, "there is no such space"}
	}
	return out.Bytes(), errors.New(strings.TrimSpace(errs.String()))
}

func open() *cobra.Command {
	var name, on, spec string
	var fresh bool
	var set []string
	c := command("open DIR", 1, func(args []string) error {
		if has(traitResolve) {
			if err := resolve(args[0], spec); err != nil {
				return errors.Join(result("failure", map[string]any{"code": exitFailure}), fmt.Errorf("read the image's config: %w", err))
			}
		}
		up := []string{"workspace", "up", "--id", name, "--provider", on}
		if fresh {
			up = append(up, "--recreate")
		}
		if spec != "" {
			up = append(up, "--devcontainer", spec)
		}
		for _, s := range set {
			up = append(up, "--provider-option", s)
		}
		up = append(up, args[0])
		if err := remember(name, up); err != nil {
			return err
		}
		out, err := quietly(up...)
		if err != nil {
			return errors.Join(result("failure", map[string]any{"code": exitFailure}), err)
		}
		var said struct{ ContainerID, RemoteUser string }
		if err := json.Unmarshal(out, &said); err != nil {
			return err
		}
		return result("space", map[string]any{"handle": name, "vm": map[string]any{"ref": said.ContainerID}, "login": login(said.RemoteUser), "root": ""})
	})
	c.Flags().StringVar(&name, "name", "", "")
	c.Flags().StringVar(&on, "on", "", "")
	c.Flags().StringVar(&spec, "spec", "", "")
	c.Flags().BoolVar(&fresh, "fresh", false, "")
	c.Flags().StringArrayVar(&set, "set", nil, "")
	return c
}

func enter() *cobra.Command {
	var run string
	c := command("enter NAME", 1, func(args []string) error {
		code := ours{in: os.Stdin, out: os.Stdout, err: os.Stderr}.run("workspace", "ssh", args[0], "--command", run)
		switch {
		case code == 0:
			return nil
		case has(traitExit):
			return &exit{exitEnded, fmt.Sprintf("remote command ended with %d", code)}
		}
		return &exit{code, "the command failed"}
	})
	c.Flags().StringVar(&run, "run", "", "")
	return c
}

func pipe() *cobra.Command {
	return command("pipe NAME", 1, func(args []string) error {
		if !has(traitLogin) {
			if code := (ours{in: os.Stdin, out: os.Stdout, err: os.Stderr}).run("workspace", "ssh", args[0], "--stdio"); code != 0 {
				return &exit{exitFailure, "the connection broke"}
			}
			return nil
		}
		return gate(args[0])
	})
}

func halt() *cobra.Command {
	return command("halt NAME", 1, func(args []string) error {
		_, err := quietly("workspace", "stop", args[0])
		return err
	})
}

func show() *cobra.Command {
	return command("show NAME", 1, func(args []string) error {
		out, err := quietly("workspace", "status", args[0], "--result-format", "json")
		if err != nil {
			return err
		}
		var said struct{ ID, Context, Provider, State string }
		if err := json.Unmarshal(out, &said); err != nil {
			return err
		}
		power := map[string]string{"Running": "up", "Stopped": "down"}[said.State]
		return result("space", map[string]any{"handle": said.ID, "realm": said.Context, "on": said.Provider, "power": power})
	})
}

func all() *cobra.Command {
	return command("all", 0, func([]string) error {
		out, err := quietly("workspace", "list", "--result-format", "json")
		if err != nil {
			return err
		}
		var said []struct {
			ID, UID  string
			Provider struct{ Name string }
		}
		if err := json.Unmarshal(out, &said); err != nil {
			return err
		}
		spaces := []any{}
		for _, one := range said {
			spaces = append(spaces, map[string]any{"handle": one.ID, "serial": one.UID, "on": map[string]any{"name": one.Provider.Name}})
		}
		return result("spaces", spaces)
	})
}

func drop() *cobra.Command {
	var now bool
	c := command("drop NAME", 1, func(args []string) error {
		_, missing := quietly("workspace", "status", args[0])
		var gone *exit
		if errors.As(missing, &gone) && has(traitAgain) {
			// The last open may have left something with the provider: it is asked once more.
			if err := again(args[0]); err != nil {
				return err
			}
		}
		_ = os.Remove(opened(args[0]))
		if gone != nil {
			return missing
		}
		_, err := quietly("workspace", "delete", args[0])
		return err
	})
	c.Flags().BoolVar(&now, "now", false, "")
	return c
}

// opened is the record of how a space was opened last.
func opened(name string) string {
	return filepath.Join(os.Getenv("FOREIGN_HOME"), "opened", filepath.Base(name))
}

func remember(name string, up []string) error {
	text, err := json.Marshal(up)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(opened(name)), 0o700)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(opened(name), text, 0o600)
}

// again runs the runtime of a space that did not open.
func again(name string) error {
	text, err := os.ReadFile(opened(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var up []string
	if err == nil {
		err = json.Unmarshal(text, &up)
	}
	if err != nil {
		return err
	}
	if _, err := quietly(up...); err == nil {
		_, err = quietly("workspace", "delete", name)
		return err
	}
	return nil
}

func add() *cobra.Command {
	var as string
	var set []string
	c := command("add SOURCE", 1, func(args []string) error {
		source := args[0]
		if source == "vm" {
			source = "microsandbox"
		} else if has(traitExec) {
			if err := wantsExec(source); err != nil {
				return err
			}
		}
		line := []string{"provider", "add", source, "--name", as}
		for _, s := range set {
			line = append(line, "-o", s)
		}
		_, err := quietly(line...)
		return err
	})
	c.Flags().StringVar(&as, "as", "", "")
	c.Flags().StringArrayVar(&set, "set", nil, "")
	return c
}

func remove() *cobra.Command {
	return command("drop NAME", 1, func(args []string) error {
		_, err := quietly("provider", "delete", args[0])
		if err != nil && strings.Contains(err.Error(), "not found") {
			return &exit{exitMissing, "there is no such source"}
		}
		return err
	})
}

// agent is the CLI on a remote machine. It keeps its state and its downloads where nobody expects
// them.
func agent(args []string) int {
	if has(traitState) {
		home := os.Getenv("HOME")
		for name, folder := range map[string]string{"DEVSY_HOME": ".local/state/foreign/agent", "XDG_CACHE_HOME": ".local/state/foreign/downloads"} {
			if err := os.Setenv(name, filepath.Join(home, folder)); err != nil {
				return exitFailure
			}
		}
	}
	c := reference.Command("devsy")
	c.SetArgs(args)
	var ended *reference.Exit
	if err := c.Execute(); errors.As(err, &ended) {
		return ended.Code
	} else if err != nil {
		return exitFailure
	}
	return 0
}

// has tells whether the CLI has a trait.
func has(trait string) bool { return !slices.Contains(lacks(), trait) }
