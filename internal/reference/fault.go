package reference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
)

// runFunc is what a command does.
type runFunc func(context.Context, *cobra.Command, []string) error

// misbehave runs a command as the fault says that this process was asked for. Every fault of the CLI is here, and the CLI itself
// knows of none.
func misbehave(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	if fault.On("") || !c.HasParent() {
		return run(ctx, c, args)
	}
	if fault.On(fault.HomesShared) {
		_ = os.Setenv("DEVSY_HOME", filepath.Join(os.Getenv("MSB_HOME"), "shared"))
	}
	switch c.Parent().Name() + " " + c.Name() {
	case "provider add":
		if fault.On(fault.ProviderAddFails) {
			return errors.New("the provider cannot be added (PARITY_FAULT)")
		}
		if fault.On(fault.ExternalIgnored) {
			args = []string{builtin}
		}
	case "provider delete":
		if fault.On(fault.ProviderDeleteFails) {
			return errors.New("the provider cannot be deleted (PARITY_FAULT)")
		}
	case "workspace up":
		return misbehavingUp(ctx, c, args, run)
	case "workspace ssh":
		return misbehavingSSH(ctx, c, args, run)
	case "workspace stop":
		mark(stoppedOnce, args[0])
		if fault.On(fault.StopIgnored) || fault.On(fault.StopOnlySaid) {
			return nil
		}
	case "workspace status":
		return misbehavingStatus(ctx, c, args, run)
	case "workspace list":
		return misbehavingList(ctx, c, args, run)
	case "workspace delete":
		return misbehavingDelete(ctx, c, args, run)
	}
	return andShadow(ctx, c, args, run)
}

const upSuccess = `{"outcome":"success","containerId":"none","remoteUser":"root","remoteWorkspaceFolder":"/"}`

func misbehavingUp(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	say := func(json string) error { _, err := fmt.Fprintln(c.OutOrStdout(), json); return err }
	recreate, _ := c.Flags().GetBool("recreate")
	own := c.Flags().Lookup("provider-option").Value.(pflag.SliceValue)
	denied := slices.Contains(own.GetSlice(), blocked+"=true")
	if fault.On(fault.StopOnlySaid) {
		id, _ := c.Flags().GetString("id")
		_ = os.Remove(marked(stoppedOnce, id))
	}
	if fault.On(fault.HomesEntered) {
		_ = os.WriteFile(marked(firstHome, ""), []byte(os.Getenv("DEVSY_HOME")), 0o644)
	}
	switch {
	case fault.On(fault.UpDoesNothing), fault.On(fault.RecreateIgnored) && recreate, fault.On(fault.StartIgnored) && !recreate && isKnown(c):
		return say(upSuccess)
	case fault.On(fault.UpFails), fault.On(fault.DenyRefused) && denied:
		return errors.Join(say(`{"outcome":"error","message":"the workspace cannot be brought up (PARITY_FAULT)"}`), &Exit{exitFailure})
	case fault.On(fault.DenyDropped), fault.On(fault.DenyDroppedAtRecreation) && recreate:
		if err := own.Replace([]string{blocked + "=false"}); err != nil {
			return err
		}
	case fault.On(fault.DenyForgotten) && !denied && isKnown(c):
		if err := errors.Join(own.Replace([]string{blocked + "=false"}), c.Flags().Set("recreate", "true")); err != nil {
			return err
		}
	case fault.On(fault.StartMakesAnew) && isStopped(ctx, c):
		if err := c.Flags().Set("recreate", "true"); err != nil {
			return err
		}
	case fault.On(fault.UpFailsSilently), fault.On(fault.UpPrintsText):
		out, err := captured(ctx, c, args, run)
		if err == nil && fault.On(fault.UpPrintsText) {
			out = "the workspace is up\n"
		} else if err != nil && fault.On(fault.UpFailsSilently) {
			out = ""
		}
		fmt.Fprint(c.OutOrStdout(), out)
		return err
	case fault.On(fault.DeleteRunsRuntime):
		id, _ := c.Flags().GetString("id")
		provider, _ := c.Flags().GetString("provider")
		noteAsked(id, provider)
	case fault.On(fault.ChecksumIgnored):
		out, err := captured(ctx, c, args, run)
		if err != nil && strings.Contains(out, "checksum") {
			return say(upSuccess)
		}
		fmt.Fprint(c.OutOrStdout(), out)
		return err
	}
	return andShadow(ctx, c, args, run)
}

func misbehavingSSH(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	stdio, _ := c.Flags().GetBool("stdio")
	switch {
	case fault.On(fault.SSHStdioNoise) && stdio:
		fmt.Fprintln(c.OutOrStdout(), "Welcome!")
	case fault.On(fault.SSHToDeniedFails) && isDenied(args[0]):
		return errors.New("the workspace cannot be entered (PARITY_FAULT)")
	case fault.On(fault.SSHOutputsMixed) && !stdio:
		c.SetErr(c.OutOrStdout())
	case fault.On(fault.SSHDeadAfterStop) && isMarked(stoppedOnce, args[0]):
		return errors.New("the workspace cannot be entered (PARITY_FAULT)")
	case fault.On(fault.HomesEntered):
		home, _ := os.ReadFile(marked(firstHome, ""))
		_ = os.Setenv("DEVSY_HOME", string(home))
	case fault.On(fault.SSHElsewhere) && isShadowed(args):
		args = []string{shadow(args[0])}
	case fault.On(fault.HostnameForged) && isShadowed(args):
		if err := forgeHostname(ctx, shadow(args[0]), args[0]); err != nil {
			return err
		}
		args = []string{shadow(args[0])}
	case fault.On(fault.OtherStore):
		for _, entry := range otherStore(args[0]) {
			name, value, _ := strings.Cut(entry, "=")
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	err := run(ctx, c, args)
	if fault.On(fault.SSHExitCodeLost) && !stdio {
		return nil
	}
	return err
}

func misbehavingStatus(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	if fault.On(fault.StatusMissingSucceeds) {
		err := run(ctx, c, args)
		if exit, ok := errors.AsType[*Exit](err); ok && exit.Code == exitMissing {
			fmt.Fprintf(c.OutOrStdout(), `{"id":%q,"context":"default","provider":"none","state":"NotFound"}`+"\n", args[0])
			return nil
		}
		return err
	}
	out, err := captured(ctx, c, args, run)
	if fault.On(fault.StatusSaysStopped) || fault.On(fault.StopOnlySaid) && isMarked(stoppedOnce, args[0]) {
		out = strings.ReplaceAll(out, stateRunning, stateStopped)
	}
	fmt.Fprint(c.OutOrStdout(), out)
	return err
}

func misbehavingList(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	out, err := captured(ctx, c, args, run)
	empty := strings.TrimSpace(out) == "[]"
	switch {
	case fault.On(fault.ListPrintsText):
		out = "some workspaces\n"
	case fault.On(fault.ListOmitsUID):
		out = strings.ReplaceAll(out, `"uid"`, `"uuid"`)
	case fault.On(fault.ListOtherUID):
		out = strings.ReplaceAll(out, `"uid":"`, `"uid":"x`)
	case fault.On(fault.ListFails) && !empty:
		return errors.New("the workspaces cannot be listed (PARITY_FAULT)")
	case (fault.On(fault.ListHangs) || fault.On(fault.ListHangsInASlowLab)) && !empty:
		<-ctx.Done()
		return ctx.Err()
	}
	fmt.Fprint(c.OutOrStdout(), out)
	return err
}

func misbehavingDelete(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	if fault.On(fault.DeleteIgnored) {
		return nil
	}
	if fault.On(fault.DeleteLeavesMachine) {
		s, err := openState()
		if err != nil {
			return err
		}
		return os.RemoveAll(s.workspaceDir(args[0]))
	}
	if fault.On(fault.DeleteAgainFails) {
		if _, _, err := opened(args[0]); errors.Is(err, errNoRecord) {
			return err
		}
	}
	if fault.On(fault.DeleteRunsRuntime) {
		runAtDelete(ctx, args[0])
	}
	return andShadow(ctx, c, args, run)
}

// What a fault remembers from one command to the next.
const (
	stoppedOnce = "stopped-once-"
	firstHome   = "first-home"
)

// marked is the file by which a fault remembers something of a workspace. All homes of a case share
// MicroSandbox's.
func marked(what, id string) string { return filepath.Join(os.Getenv("MSB_HOME"), what+id) }

func mark(what, id string) { _ = os.WriteFile(marked(what, id), nil, 0o644) }

func isMarked(what, id string) bool {
	_, err := os.Stat(marked(what, id))
	return err == nil
}

// captured runs a command and gives what it printed to standard output.
func captured(ctx context.Context, c *cobra.Command, args []string, run runFunc) (string, error) {
	out := c.OutOrStdout()
	var printed bytes.Buffer
	c.SetOut(&printed)
	defer c.SetOut(out)
	err := run(ctx, c, args)
	return printed.String(), err
}

// isKnown tells whether there is a record of the workspace that an up is about.
func isKnown(c *cobra.Command) bool {
	id, _ := c.Flags().GetString("id")
	_, _, err := opened(id)
	return err == nil
}

// isStopped tells whether the workspace that an up is about is there and stopped.
func isStopped(ctx context.Context, c *cobra.Command) bool {
	id, _ := c.Flags().GetString("id")
	w, d, err := opened(id)
	if err != nil {
		return false
	}
	defer release(d)
	state, err := stateOf(ctx, d, w)
	return err == nil && state == stateStopped
}

// blocked is the option that denies egress, as it is given.
const blocked = "MICROSANDBOX_BLOCK_EGRESS"

// isDenied tells whether the workspace's egress is denied.
func isDenied(id string) bool {
	w, _, err := opened(id)
	return err == nil && w.OwnOptions[blocked] == "true"
}

// agentFault gives the flags by which the agent in a guest is asked for the fault of this process.
func agentFault(w workspace) []string {
	asked := fault.Asked()
	switch {
	case asked == "", asked == fault.ProbeMissingInDenied && w.OwnOptions[blocked] != "true":
		return nil
	case asked == fault.ProbeMissingInDenied:
		asked = fault.ProbeMissing
	}
	return []string{"--fault", string(asked)}
}

// shadow is the id of the workspace that is made alike.
func shadow(id string) string { return id + "-shadow" }

// isShadowed tells whether the workspace has one that is made alike.
func isShadowed(args []string) bool {
	_, _, err := opened(shadow(args[0]))
	return err == nil
}

// forgeHostname gives a workspace's guest the host name of another's.
func forgeHostname(ctx context.Context, id, as string) error {
	w, d, err := opened(id)
	if err != nil {
		return err
	}
	defer release(d)
	other, _, err := opened(as)
	if err != nil {
		return err
	}
	_, err = d.Exec(ctx, w.UID, []string{"hostname", msbdriver.Name(other.UID)}, driver.Streams{})
	return err
}

// otherStore is the environment by which this CLI has a workspace of the same name in another store of MicroSandbox.
func otherStore(id string) []string {
	dir := filepath.Join(filepath.Dir(os.Getenv("MSB_HOME")), "other", id)
	return []string{"DEVSY_HOME=" + filepath.Join(dir, "records"), "MSB_HOME=" + filepath.Join(dir, "m")}
}

// makeOtherStore makes what otherStore names, once: the records are those of now, so that the workspace has the same name there.
func makeOtherStore(id string) error {
	s, err := openState()
	if err != nil {
		return err
	}
	_, records, _ := strings.Cut(otherStore(id)[0], "=")
	_, store, _ := strings.Cut(otherStore(id)[1], "=")
	if _, err := os.Stat(store); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(store, 0o755), os.CopyFS(filepath.Join(records, "contexts", contextName), os.DirFS(s.dir)))
}

// andShadow runs a command and, where there is to be a second workspace, the same for that: one that is made alike, or one of the same
// name in another store.
func andShadow(ctx context.Context, c *cobra.Command, args []string, run runFunc) error {
	err := run(ctx, c, args)
	alike := fault.On(fault.SSHElsewhere) || fault.On(fault.HostnameForged)
	stored := fault.On(fault.OtherStore) || fault.On(fault.OtherStoreBeside)
	if err != nil || !alike && !stored || c.Parent().Name() != "workspace" {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	again := slices.Clone(os.Args[1:])
	at := slices.Index(again, c.Name()) + 1 // the id is the first argument
	if c.Name() == "up" {
		at = slices.Index(again, "--id") + 1
	}
	env := append(os.Environ(), fault.Env+"=")
	if alike {
		again[at] = shadow(again[at])
	} else {
		if err := makeOtherStore(again[at]); err != nil {
			return err
		}
		env = append(env, otherStore(again[at])...)
	}
	again = append(again, ignoreNotFound(c)...)
	child := exec.CommandContext(ctx, self, again...)
	child.Env = env
	child.Stderr = c.ErrOrStderr()
	return child.Run()
}

func ignoreNotFound(c *cobra.Command) []string {
	if c.Flags().Lookup("ignore-not-found") == nil {
		return nil
	}
	return []string{"--ignore-not-found"}
}
