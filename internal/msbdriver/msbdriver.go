// Package msbdriver runs workspaces as MicroSandbox machines.
package msbdriver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/reference/images"
)

// Name is the name of a workspace's machine: "devsy-" and the workspace's uid. A name longer than 128 characters is cut, and ends in
// "-" and the first 12 hex digits of the uid's SHA-256.
func Name(workspace string) string {
	const limit, digits = 128, 12
	name := "devsy-" + workspace
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(workspace))
	return name[:limit-digits-1] + "-" + hex.EncodeToString(sum[:])[:digits]
}

// Driver is a driver.Driver over msb.
type Driver struct {
	MSB     *msb.Client
	Options Options
	Log     io.Writer // what becomes of images, for people; nil is nobody
}

var _ driver.Driver = Driver{}

// Find implements driver.Driver.
func (d Driver) Find(ctx context.Context, workspace string) (driver.Machine, bool, error) {
	s, err := d.MSB.Inspect(ctx, Name(workspace))
	if errors.Is(err, msb.ErrNotFound) {
		return driver.Machine{}, false, nil
	}
	if err != nil {
		return driver.Machine{}, false, err
	}
	m := driver.Machine{ID: Name(workspace), Running: s.Status == msb.StatusRunning, CreatedAt: s.CreatedAt}
	if s.Config != nil && s.Config.Runtime != nil && s.Config.Runtime.User != nil {
		m.User = *s.Config.Runtime.User
	}
	return m, true, nil
}

// The calls below do not look before they act: each msb command costs a second in an emulated lab. They look when one failed.

// Run implements driver.Driver. What a failed run left is removed; what one left whose context is over is not: Delete does it.
func (d Driver) Run(ctx context.Context, workspace string, o driver.RunOptions) (driver.Machine, error) {
	create, err := d.Prepare(ctx, workspace, o)
	if err != nil {
		return driver.Machine{}, err
	}
	return driver.Machine{ID: create.Name, Running: true, User: create.User}, d.Create(ctx, workspace, create)
}

// Prepare brings a machine's image into MicroSandbox's store and gives what Create makes the
// machine of.
func (d Driver) Prepare(ctx context.Context, workspace string, o driver.RunOptions) (msb.CreateOptions, error) {
	image, err := images.Store{MSB: d.MSB, Log: d.Log}.Deliver(ctx, o.Image, o.ImageBuiltLocally)
	if err != nil {
		return msb.CreateOptions{}, err
	}
	create := msb.CreateOptions{
		Name: Name(workspace), Image: o.Image, NoPull: true, User: o.User, Env: o.Environment, Labels: o.Labels,
		CPUs: d.Options.CPUs, MaxCPUs: d.Options.MaxCPUs, MemoryMiB: d.Options.MemoryMiB, MaxMemoryMiB: d.Options.MaxMemoryMiB,
		RootDiskGiB: d.Options.StorageGiB, IdleTimeout: d.Options.InactivityTimeout, DenyEgress: d.Options.BlockEgress,
	}
	if create.User == "" {
		create.User = image.User // told to msb, it is in what msb tells of the machine
	}
	for _, f := range o.Files {
		create.Copies = append(create.Copies, msb.Copy(f))
	}
	return misbehave(create), nil
}

// Create creates the machine that Prepare has prepared, as Run does.
func (d Driver) Create(ctx context.Context, workspace string, o msb.CreateOptions) error {
	began := time.Now().Truncate(time.Second) // msb's time stamps may have no fractions
	err := d.MSB.Create(ctx, o)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, msb.ErrExists): // and not by its time alone: it may have been made in this very second
		return fmt.Errorf("%w: %w", driver.ErrExists, err)
	}
	m, found, lookErr := d.Find(ctx, workspace)
	switch {
	case found && m.CreatedAt.Before(began):
		return fmt.Errorf("%w: %w", driver.ErrExists, err)
	case found: // a create that fails late leaves a record
		return errors.Join(err, d.Delete(ctx, workspace))
	}
	return errors.Join(err, lookErr)
}

// Start implements driver.Driver.
func (d Driver) Start(ctx context.Context, workspace string) error {
	return d.judge(ctx, workspace, true, d.MSB.Start(ctx, Name(workspace)))
}

// Stop implements driver.Driver.
func (d Driver) Stop(ctx context.Context, workspace string) error {
	return d.judge(ctx, workspace, false, d.MSB.Stop(ctx, Name(workspace)))
}

// judge says what the error of a start or stop means: nothing, where the machine is as it was to become.
func (d Driver) judge(ctx context.Context, workspace string, running bool, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	m, found, lookErr := d.Find(ctx, workspace)
	switch {
	case lookErr != nil:
		return errors.Join(err, lookErr)
	case !found:
		return fmt.Errorf("%w: %w", driver.ErrNotFound, err)
	case m.Running == running:
		return nil
	}
	return err
}

// Delete implements driver.Driver.
func (d Driver) Delete(ctx context.Context, workspace string) error {
	if err := d.MSB.Remove(ctx, Name(workspace)); !errors.Is(err, msb.ErrNotFound) {
		return err
	}
	return nil
}

// Exec implements driver.Driver.
func (d Driver) Exec(ctx context.Context, workspace string, argv []string, s driver.Streams) (int, error) {
	return d.ExecAs(ctx, workspace, msb.ExecOptions{}, argv, s)
}

// ExecAs is Exec with more to say of how the command runs.
func (d Driver) ExecAs(ctx context.Context, workspace string, o msb.ExecOptions, argv []string, s driver.Streams) (int, error) {
	cmd := d.MSB.ExecCmdAs(Name(workspace), misbehavingExec(o, argv), argv)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	if s.Out == nil {
		cmd.Stdout = io.Discard
	}
	_, cmd.RawStderr = s.Err.(*os.File)
	res, err := proc.Run(ctx, cmd)
	if code, exited := proc.ExitCode(err); exited {
		return code, nil
	}
	return res.ExitCode, err
}
