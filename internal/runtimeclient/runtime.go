// Package runtimeclient is the host's side of Runtime Protocol v1: it starts a runtime, a program of its own, for one operation, and
// gives it as a driver.Driver.
package runtimeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"dagger/parity/internal/owned"
	"dagger/parity/internal/proc"
	pb "dagger/parity/internal/runtimeproto"
)

// StartDeadline is how long a runtime may take from its start to the end of the handshake.
const StartDeadline = 15 * time.Second

// Command is how to start a runtime.
type Command struct {
	Path string   // absolute
	Args []string // such as "serve"
	Env  []string // the whole environment, but for what the protocol adds
	Dir  string   // working folder; empty means this process's own

	// Log gets what the runtime writes to standard error, as it comes; nil is nobody. The last of it is in errors in any case.
	Log io.Writer

	StartDeadline time.Duration // 0 means StartDeadline
}

// Runtime is a runtime that runs. Close must be called.
type Runtime struct {
	// Calls are the protocol's calls as they are. Errors are gRPC's; Explain makes them readable.
	Calls pb.RuntimeDriverClient
	// Info is what the runtime said of itself at the start.
	Info *pb.InfoResponse

	client  *plugin.Client
	process *process
	sockets *owned.Folder // of the runtime's socket
	close   sync.Once

	way  Way // to a runtime that somebody else has started: then there is no client, process and sockets
	conn *grpc.ClientConn
}

// The ways in which a runtime can fail to start.
const (
	NotStarted   = "not started"   // the program could not be run
	Crashed      = "crashed"       // it ended before it was ready
	TooSlow      = "too slow"      // it was not ready at the deadline
	BadHandshake = "bad handshake" // what it said first is no handshake, or leads nowhere
	WrongVersion = "wrong version" // of the protocol
	WrongAPI     = "wrong API"     // of another major version
	FailedInfo   = "failed Info"   // Info failed, did not answer, or lacks what it must have
)

// StartError says why a runtime did not start. Why is empty when the caller's context was over first.
type StartError struct {
	Command []string
	Why     string
	Err     error
	Stderr  string // the last words of the runtime
}

// Error names the command, the reason and the runtime's last words.
func (e *StartError) Error() string {
	text := fmt.Sprintf("start the runtime %s: %v", shellescape.QuoteCommand(e.Command), e.Err)
	if e.Stderr != "" {
		text += "; its last words:\n    " + strings.ReplaceAll(e.Stderr, "\n", "\n    ")
	}
	return text
}

// Unwrap gives the reason.
func (e *StartError) Unwrap() error { return e.Err }

// socketFolder is where the folders of sockets are made: for temporary files, if a socket's path is not too long there.
func socketFolder() string {
	if folder := os.TempDir(); len(folder) <= maxTempDir {
		return folder
	}
	return shortFolder
}

const shortFolder = "/tmp"

// Clean removes the folders of sockets that killed hosts of runtimes left, and gives them.
func Clean() (removed []string, err error) {
	folders := []string{socketFolder(), shortFolder} // other hosts may have another folder for temporary files, that is too long
	for _, folder := range slices.Compact(folders) {
		more, cleanErr := owned.Clean(folder, socketPrefix, nil)
		removed, err = append(removed, more...), errors.Join(err, cleanErr)
	}
	return removed, err
}

// Start starts a runtime and asks for its Info, whose major version must be this one's. Its error is a *StartError. When ctx is done before
// that, the runtime is ended.
func Start(ctx context.Context, c Command) (*Runtime, error) {
	if c.StartDeadline == 0 {
		c.StartDeadline = StartDeadline
	}
	began := time.Now()
	p := &process{cmd: proc.Cmd{Argv: append([]string{c.Path}, c.Args...), Dir: c.Dir}, log: c.Log}
	r := &Runtime{process: p}
	var err error
	_, _ = Clean()
	if r.sockets, err = owned.Make(socketFolder(), socketPrefix); err != nil {
		return nil, &StartError{Command: p.cmd.Argv, Why: NotStarted, Err: fmt.Errorf("a folder for its socket: %w", err)}
	}
	r.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  pb.Handshake(),
		VersionedPlugins: pb.Plugins(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		StartTimeout:     c.StartDeadline,
		Logger:           hclog.NewNullLogger(),
		SkipHostEnv:      true,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: r.sockets.Path},
		GRPCDialOptions:  []grpc.DialOption{grpc.WithInitialWindowSize(pb.FlowWindow), grpc.WithInitialConnWindowSize(pb.FlowWindow)},
		SyncStdout:       p.words(), // what a runtime prints once the handshake is over belongs to its diagnostics
		SyncStderr:       p.words(),
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			p.cmd.Env = append(c.Env[:len(c.Env):len(c.Env)], cmd.Env...)
			return p, nil
		},
	})
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(c.StartDeadline), errTooSlow)
	defer cancel()
	unwatch := context.AfterFunc(ctx, func() { _ = p.Kill(ctx) })
	err = r.connect(ctx)
	if !unwatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		err = r.startError(ctx, c, err)
		r.Close()
		return nil, err
	}
	return r, nil
}

var errTooSlow = errors.New("it took too long")

// connect goes through the handshake and asks for Info.
func (r *Runtime) connect(ctx context.Context) error {
	protocol, err := r.client.Client()
	if err != nil {
		return err
	}
	service, err := protocol.Dispense(pb.PluginName)
	if err != nil {
		return err
	}
	r.Calls = service.(pb.RuntimeDriverClient)
	if r.Info, err = r.Calls.Info(ctx, &pb.InfoRequest{}); err != nil {
		return fmt.Errorf("call Info: %w", pb.FromStatus(err))
	}
	return CheckInfo(r.Info)
}

// CheckInfo checks what every runtime must say of itself.
func CheckInfo(i *pb.InfoResponse) error {
	switch {
	case i.GetApiMajor() != pb.APIMajor:
		return pb.Errorf(pb.Incompatible, "Info: expected a runtime of API version %d, seen version %d.%d", pb.APIMajor, i.GetApiMajor(), i.GetApiMinor())
	case i.GetDriverName() == "" || i.GetDriverVersion() == "" || i.GetRuntimeName() == "":
		return pb.Errorf(pb.RuntimeFailure, "Info: expected driver_name, driver_version and runtime_name, seen %q, %q and %q",
			i.GetDriverName(), i.GetDriverVersion(), i.GetRuntimeName())
	case i.GetCapabilities() == nil:
		return pb.Errorf(pb.RuntimeFailure, "Info: expected capabilities, seen none")
	}
	for _, m := range i.GetCapabilities().GetMountTypes() {
		if _, known := pb.MountType_name[int32(m)]; !known || m == pb.MountType_MOUNT_TYPE_UNSPECIFIED {
			return pb.Errorf(pb.RuntimeFailure, "Info: unknown mount type %d", m)
		}
	}
	if _, known := pb.RecreateMode_name[int32(i.GetCapabilities().GetRecreateMode())]; !known {
		return pb.Errorf(pb.RuntimeFailure, "Info: unknown recreate mode %d", i.GetCapabilities().GetRecreateMode())
	}
	return nil
}

// atDeadline is how far from the deadline the clocks of two processes may be.
const atDeadline = 100 * time.Millisecond

// startError says why a runtime did not start.
func (r *Runtime) startError(ctx context.Context, c Command, err error) error {
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < atDeadline {
		<-ctx.Done() // the runtime, which knows the deadline, was a moment earlier to give up
	}
	e := &StartError{Command: append([]string{c.Path}, c.Args...), Why: FailedInfo, Err: err, Stderr: r.process.stderr.String()}
	cause := context.Cause(ctx)
	line, spoke := r.process.stdout.first()
	how, ended := r.process.crashed()
	switch {
	case cause != nil && !errors.Is(cause, errTooSlow):
		e.Why, e.Err = "", cause
	case r.process.running == nil:
		var child *proc.Error // its text has the command once more
		if e.Why = NotStarted; errors.As(err, &child) && child.Cause != nil {
			e.Err = child.Cause
		}
	case cause != nil && r.Calls != nil:
		e.Why, e.Err = FailedInfo, fmt.Errorf("expected an answer of Info within %s of the start, seen none", c.StartDeadline)
	case cause != nil:
		e.Why, e.Err = TooSlow, fmt.Errorf("expected a handshake on standard output within %s, seen none", c.StartDeadline)
	case ended && !spoke:
		e.Why, e.Err, e.Stderr = Crashed, fmt.Errorf("expected a handshake on standard output, seen none: %w", how), own(how, e.Stderr)
	case r.Calls != nil && ended:
		e.Why, e.Err, e.Stderr = Crashed, fmt.Errorf("expected an answer of Info: %w", how), own(how, e.Stderr)
	case r.Calls != nil && r.Info == nil && unreachable(err):
		e.Why = BadHandshake
	case r.Calls != nil && r.Info != nil && r.Info.GetApiMajor() != pb.APIMajor:
		e.Why = WrongAPI
	case r.Calls == nil:
		fields := strings.Split(line, "|")
		const form = "1|1|unix|PATH|grpc|"
		if len(fields) < 5 || fields[4] != string(plugin.ProtocolGRPC) {
			e.Why, e.Err = BadHandshake, fmt.Errorf("the first line of standard output: expected a handshake such as %s, seen %.200q", form, line)
		} else if fields[1] != strconv.Itoa(pb.ProtocolVersion) {
			e.Why, e.Err = WrongVersion, fmt.Errorf("the handshake: expected protocol version %d, seen %.20q", pb.ProtocolVersion, fields[1])
		} else {
			e.Why = BadHandshake
		}
	}
	return e
}

// own gives the last words of a runtime, unless the error of its end has them.
func own(how error, words string) string {
	var has *proc.Error
	if errors.As(how, &has) {
		return ""
	}
	return words
}

// PID is the process id of the runtime.
func (r *Runtime) PID() int { return r.process.running.PID() }

// Explain makes a call's error readable: which call it was, what the runtime said, and how it ended if it did. It is nil of nil.
func (r *Runtime) Explain(call string, err error) error {
	if err == nil {
		return nil
	}
	err = pb.FromStatus(err)
	if unreachable(err) {
		if how, ended := r.awaitCrash(); ended && r.way != nil {
			return fmt.Errorf("the connection to the runtime ended during %s: %w", call, how)
		} else if ended {
			return fmt.Errorf("the runtime ended during %s: %w", call, how)
		}
	}
	return fmt.Errorf("%s by the runtime %s: %w", call, r.Info.GetDriverName(), err)
}

// unreachable tells whether the connection to the runtime broke, or never came to be: the runtime itself says more than gRPC does.
func unreachable(err error) bool {
	var e *pb.Error
	return errors.As(err, &e) && e.Status == codes.Unavailable && e.Code == pb.Unknown
}

// awaitCrash waits a moment for the process to end: its connection breaks before it is reaped.
func (r *Runtime) awaitCrash() (error, bool) {
	if r.way != nil {
		return r.way.Ended()
	}
	select {
	case <-r.process.running.Done():
	case <-time.After(drain):
	}
	return r.process.crashed()
}

// The path of a socket may have 107 bytes. The library adds /plugin-dirN/pluginN to that of this folder, each N of up to 10 digits.
const (
	socketPrefix = "prt-"
	maxTempDir   = 107 - len("/"+socketPrefix+"/plugin-dir"+"/plugin") - 3*10
)

// closeGrace is how long the polite way of ending a runtime may take.
const closeGrace = 3 * time.Second

// Close ends the runtime: it is asked to, then made to. It is reaped when Close returns. What a runtime that had crashed left in its
// process group is ended too.
func (r *Runtime) Close() {
	r.close.Do(func() {
		if r.way != nil {
			_ = r.conn.Close()
			_ = r.way.Close()
			return
		}
		r.process.endRest()
		// The library gives a runtime 2 seconds to end, but waits without limit for it to be told so.
		hung := time.AfterFunc(closeGrace, func() { _ = r.process.Kill(context.Background()) })
		defer hung.Stop()
		r.client.Kill()
		_ = r.process.Kill(context.Background())
		_ = r.sockets.Remove()
	})
}

// EndedItself tells, once the runtime is closed, whether it ended because it was asked to and not because it was made to.
func (r *Runtime) EndedItself() bool {
	_, ended := r.process.crashed()
	return ended
}
