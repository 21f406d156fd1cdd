// Package runtimefake is a fake runtime for tests of what speaks Runtime Protocol v1: the server and the process are real, the machines
// are not. A machine is a file; its commands are processes of this machine's, and nothing keeps them apart from it. It can be told to
// misbehave, so that a test can show which check catches which fault.
package runtimefake

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/driver"
	pb "dagger/parity/internal/runtimeproto"
	"dagger/parity/internal/runtimeserver"
)

// The environment of the fake.
const (
	EnvState = "RUNTIME_FAKE_STATE" // the folder of the machines
	EnvFault = "RUNTIME_FAKE_FAULT" // a Fault, or empty
)

// Called tells whether a test's program was started as the fake: it is to run Main then.
func Called() bool { return os.Getenv(EnvState) != "" && slices.Contains(os.Args[1:], "serve") }

// Main is the fake's program. It gives the exit code.
func Main() int {
	f := Fault(os.Getenv(EnvFault))
	if f != "" && !slices.Contains(Faults(), f) {
		fmt.Fprintf(os.Stderr, "%s=%s: there is no such fault\n", EnvFault, f)
		return 2
	}
	starts = countStart(os.Getenv(EnvState))
	if code, done := f.beforeHandshake(); done {
		return code
	}
	fake := &Fake{Dir: os.Getenv(EnvState), Fault: f}
	fake.options, fake.wrong = msbdriver.ParseEnvironment(os.Environ())
	service := &faulty{RuntimeDriverServer: runtimeserver.Service(fake), fault: f}
	if f == OutlivesHost { // the library does not look after its host, nor is it asked to here
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: pb.Handshake(), VersionedPlugins: pb.Plugins(service), GRPCServer: plugin.DefaultGRPCServer})
		return 0
	}
	if err := runtimeserver.ServeService(service); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f.afterServing()
	return 0
}

// starts is how many processes of the fake the state's folder has seen, this one included.
var starts int

func countStart(dir string) int {
	log, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0
	}
	defer log.Close()
	_, _ = log.WriteString("x")
	info, err := log.Stat()
	if err != nil {
		return 0
	}
	return int(info.Size())
}

// Fake is a runtime whose machines are files in Dir.
type Fake struct {
	Dir   string
	Fault Fault

	options msbdriver.Options
	wrong   error // what is wrong with the options
}

var _ runtimeserver.Runtime = (*Fake)(nil)

// record is a machine.
type record struct {
	Image   string
	Running bool
	Created time.Time
	Env     map[string]string
	Logs    string
	Again   bool // it was started again
}

func (f *Fake) file(workspace string) string {
	return filepath.Join(f.Dir, strings.ReplaceAll(workspace, "/", "_")+".json")
}

func (f *Fake) read(workspace string) (r record, err error) {
	text, err := os.ReadFile(f.file(workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: %s", driver.ErrNotFound, workspace)
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (f *Fake) write(workspace string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(f.file(workspace), text, 0o600)
}

// Info implements runtimeserver.Runtime.
func (f *Fake) Info() *pb.InfoResponse {
	return &pb.InfoResponse{
		ApiMajor: pb.APIMajor, ApiMinor: pb.APIMinor, DriverName: "fake", DriverVersion: "1", RuntimeName: "processes of this machine",
		Capabilities: &pb.Capabilities{RecreateMode: pb.RecreateMode_RECREATE_MODE_DELETE, Logs: true},
	}
}

// Preflight implements runtimeserver.Runtime.
func (f *Fake) Preflight(context.Context) error {
	if f.wrong != nil && !f.Fault.ignores(f.wrong) {
		return pb.Errorf(pb.InvalidArgument, "%v", f.wrong)
	}
	return nil
}

// Architecture implements runtimeserver.Runtime.
func (f *Fake) Architecture(context.Context, string) (string, error) {
	if f.Fault == ArchitectureUnknown {
		return "x86_64", nil
	}
	return "amd64", nil
}

// Find implements runtimeserver.Runtime.
func (f *Fake) Find(_ context.Context, workspace string) (driver.Machine, bool, error) {
	r, err := f.read(workspace)
	if errors.Is(err, driver.ErrNotFound) && f.Fault != FindMissingFails {
		return driver.Machine{}, false, nil
	}
	return driver.Machine{ID: "fake-" + workspace, Running: r.Running, CreatedAt: r.Created}, err == nil, err
}

// Run implements runtimeserver.Runtime.
func (f *Fake) Run(ctx context.Context, r *pb.RunImageRequest) error {
	if err := f.Preflight(ctx); err != nil {
		return err
	}
	if strings.Contains(r.GetImage(), "no-such-image") && f.Fault != AnyImageRuns {
		return pb.Errorf(pb.NotFound, "there is no image %s", r.GetImage())
	}
	if _, err := f.read(r.GetWorkspaceId()); err == nil && f.Fault != RunTwice {
		if f.Fault == RunAgainRemoves {
			_ = os.Remove(f.file(r.GetWorkspaceId()))
		}
		return fmt.Errorf("%w: %s", driver.ErrExists, r.GetWorkspaceId())
	}
	if f.Fault == RunNothing {
		return nil
	}
	m := record{Image: r.GetImage(), Running: f.Fault != RunStopped, Created: time.Now(), Env: r.GetEnvironment()}
	if strings.Contains(strings.Join(r.GetArgs(), " "), "echo ") { // one that says nothing is not waited for
		m.Logs = firstLine(ctx, append([]string{r.GetEntrypoint()}, r.GetArgs()...))
	}
	return f.write(r.GetWorkspaceId(), m)
}

// firstLine is what the machine's own process says, as far as a fake goes: it is run until it has said a line.
func firstLine(ctx context.Context, argv []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return ""
	}
	defer r.Close()
	p, err := proc.Start(ctx, proc.Cmd{Argv: argv, Stdout: w})
	w.Close()
	if err != nil {
		return ""
	}
	defer p.Stop()
	line, _ := bufio.NewReader(r).ReadString('\n')
	return line
}

// Start implements runtimeserver.Runtime.
func (f *Fake) Start(_ context.Context, workspace string) error {
	r, err := f.read(workspace)
	switch {
	case errors.Is(err, driver.ErrNotFound) && f.Fault == StartMissingSucceeds:
		return nil
	case err != nil:
		return err
	case r.Running && f.Fault == StartRunningFails:
		return errors.New("it runs already")
	case f.Fault == StartDoesNothing:
		return nil
	}
	r.Running, r.Again = true, r.Again || !r.Running
	return f.write(workspace, r)
}

// Stop implements runtimeserver.Runtime.
func (f *Fake) Stop(_ context.Context, workspace string) error {
	r, err := f.read(workspace)
	switch {
	case err != nil:
		return err
	case !r.Running && f.Fault == StopStoppedFails:
		return errors.New("it is stopped already")
	case f.Fault == StopDoesNothing:
		return nil
	}
	r.Running = false
	return f.write(workspace, r)
}

// Delete implements runtimeserver.Runtime.
func (f *Fake) Delete(_ context.Context, workspace string) error {
	_, err := f.read(workspace)
	switch {
	case errors.Is(err, driver.ErrNotFound) && f.Fault != DeleteMissingFails:
		return nil
	case err != nil:
		return err
	case f.Fault == DeleteDoesNothing:
		return nil
	}
	return os.Remove(f.file(workspace))
}

// Exec implements runtimeserver.Runtime.
func (f *Fake) Exec(ctx context.Context, start *pb.ExecStart, s driver.Streams) (*pb.ExecExit, error) {
	r, err := f.read(start.GetWorkspaceId())
	if f.Fault == ExecMissingRuns && err != nil {
		return &pb.ExecExit{}, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Fault == ExecLostAtRestart && r.Again {
		return nil, errors.New("the machine's door is locked")
	}
	if !r.Running && f.Fault != ExecBoots {
		return nil, pb.Errorf(pb.FailedPrecondition, "the machine of %s is stopped", start.GetWorkspaceId())
	}
	if f.Fault == ExecCrashes {
		_, _ = unix.Write(2, []byte("fake: no more\n")) // os.Stderr is the library's by now, and may not reach the host in time
		os.Exit(9)
	}
	cmd := proc.Cmd{Argv: start.GetArgv(), Env: os.Environ(), Dir: start.GetWorkdir(), Stdin: s.In, Stdout: s.Out, Stderr: s.Err, RawStderr: true}
	for _, env := range []map[string]string{r.Env, start.GetEnvironment()} {
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	switch f.Fault {
	case ExecMergesStderr:
		cmd.Stderr = s.Out
	case ExecEnvLost:
		cmd.Env = os.Environ()
	case ExecJoinsArgv:
		cmd.Argv = strings.Fields(strings.Join(start.GetArgv()[min(3, len(start.GetArgv())):], " "))
		cmd.Argv = append(slices.Clone(start.GetArgv()[:min(3, len(start.GetArgv()))]), cmd.Argv...)
	}
	run := ctx
	if f.Fault == CancelIgnored {
		run = context.WithoutCancel(ctx)
	}
	p, err := proc.Start(run, cmd)
	if err != nil {
		return &pb.ExecExit{ExitCode: 127}, nil
	}
	select {
	case <-p.Done():
	case <-f.abandoned(ctx):
		return nil, ctx.Err()
	}
	_, err = p.Wait()
	code, exited := proc.ExitCode(err)
	switch {
	case err == nil || f.Fault == ExecCodeLost && exited && code < 128:
		return &pb.ExecExit{}, nil
	case !exited:
		return nil, err
	case code <= 128 || code > 128+64: // it exited by itself
	case f.Fault == ExecSignalLost:
		return &pb.ExecExit{}, nil
	default:
		return &pb.ExecExit{ExitCode: int32(code), Signal: syscall.Signal(code - 128).String()}, nil
	}
	return &pb.ExecExit{ExitCode: int32(code)}, nil
}

// abandoned is when a command is left to itself: never, but for the fault.
func (f *Fake) abandoned(ctx context.Context) <-chan struct{} {
	if f.Fault == CancelIgnored {
		return ctx.Done()
	}
	return nil
}

// Logs implements runtimeserver.Runtime.
func (f *Fake) Logs(ctx context.Context, workspace string, to io.Writer) error {
	r, err := f.read(workspace)
	if err != nil {
		return err
	}
	if f.Fault == LogsNeverEnd {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err = io.WriteString(to, r.Logs)
	return err
}
