// Package driver is the seam between the reference CLI and what runs its workspaces. The meaning of each call is that of Devsy's
// Runtime Protocol v1, so that a runtime behind that protocol can stand in for the built-in one.
package driver

import (
	"context"
	"errors"
	"io"
	"time"
)

// Driver runs the machine of each workspace. A workspace is named by its uid; how a machine is named is the driver's own business.
// What a machine is made with (memory, CPUs, egress) reaches a driver when it is made.
type Driver interface {
	// Find looks for a workspace's machine. One that is absent is found == false and no error.
	Find(ctx context.Context, workspace string) (m Machine, found bool, err error)
	// Run makes a machine, starts it, and gives it. One that is there already is ErrExists.
	Run(ctx context.Context, workspace string, o RunOptions) (Machine, error)
	// Start starts a machine. One that is running is no error; one that is absent is ErrNotFound.
	Start(ctx context.Context, workspace string) error
	// Stop stops a machine. One that is stopped is no error; one that is absent is ErrNotFound.
	Stop(ctx context.Context, workspace string) error
	// Delete removes a machine, whatever its state. One that is absent is no error.
	Delete(ctx context.Context, workspace string) error
	// Exec runs a command in a running machine and gives its exit code. The error is that of the way there. The caller has looked
	// that the machine runs: what happens with a stopped one is not defined.
	Exec(ctx context.Context, workspace string, argv []string, s Streams) (exitCode int, err error)
}

// The errors that callers tell apart.
var (
	ErrNotFound = errors.New("no such machine")
	ErrExists   = errors.New("the machine exists already")
)

// Machine is what Find says of a machine.
type Machine struct {
	ID        string // its name where it runs
	Running   bool   // a machine that is neither running nor stopped, such as a crashed one, counts as stopped
	CreatedAt time.Time
	User      string // whom its commands run as; empty if the driver does not know
}

// RunOptions say what to run.
type RunOptions struct {
	Image             string // a reference, of the Docker Engine's, of a registry's, or of the driver's own image store
	ImageBuiltLocally bool   // the image is the Docker Engine's: no registry is asked for it

	User        string // empty leaves it to the image
	Environment map[string]string
	Labels      map[string]string
	Files       []File // there before the machine starts for the first time
}

// File is a file of this machine's and the absolute path at which the other gets it, its mode kept.
type File struct{ Source, Target string }

// Streams are a command's standard streams. An *os.File goes to the command as it is, where the driver can; nil is nothing.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}
