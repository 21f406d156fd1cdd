package runtimeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/driver"
	pb "dagger/parity/internal/runtimeproto"
)

// Driver gives the runtime as a driver.
func (r *Runtime) Driver() driver.Driver { return drv{r} }

type drv struct{ *Runtime }

// Find implements driver.Driver.
func (d drv) Find(ctx context.Context, workspace string) (m driver.Machine, found bool, err error) {
	res, err := d.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: workspace})
	if err != nil || !res.GetFound() {
		return m, false, d.Explain("Find", err)
	}
	c := res.GetContainer()
	m.ID, m.User = c.GetId(), c.GetConfig().GetUser()
	if m.CreatedAt, err = time.Parse(time.RFC3339Nano, c.GetCreatedAt()); err != nil {
		return m, false, d.Explain("Find", fmt.Errorf("created_at: expected a time of RFC 3339, seen %q", c.GetCreatedAt()))
	}
	switch status := c.GetState().GetStatus(); status {
	case pb.StatusRunning:
		m.Running = true
	case pb.StatusStopped:
	default:
		return m, false, d.Explain("Find", fmt.Errorf("status: expected %q or %q, seen %q", pb.StatusRunning, pb.StatusStopped, status))
	}
	return m, true, nil
}

// keepAlive is the process of a machine that ends with its first process, as a container does. A machine that stays up by itself need not
// run it.
var keepAlive = []string{"/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"}

// Run implements driver.Driver. The protocol carries no files, so they go through Exec once the machine runs; the image must have /bin/sh,
// mkdir, cat and chmod.
func (d drv) Run(ctx context.Context, workspace string, o driver.RunOptions) (driver.Machine, error) {
	if _, err := d.Calls.Preflight(ctx, &pb.PreflightRequest{}); err != nil {
		return driver.Machine{}, d.Explain("Preflight", err)
	}
	request := &pb.RunImageRequest{
		WorkspaceId: workspace, Image: o.Image, ImageBuiltLocally: o.ImageBuiltLocally, User: o.User, RemoteUser: o.User,
		Environment: o.Environment, Entrypoint: keepAlive[0], Args: keepAlive[1:],
	}
	for _, key := range slices.Sorted(maps.Keys(o.Labels)) {
		request.Labels = append(request.Labels, key+"="+o.Labels[key])
	}
	if _, err := d.Calls.RunImage(ctx, request); err != nil {
		return driver.Machine{}, d.Explain("RunImage", err)
	}
	machine, err := d.fill(ctx, workspace, o.Files)
	if err != nil && ctx.Err() == nil { // what a failed run left is removed; a cancelled one has no time for it
		err = errors.Join(err, d.Delete(ctx, workspace))
	}
	return machine, err
}

// fill puts the files into a machine that was just made, and gives the machine.
func (d drv) fill(ctx context.Context, workspace string, files []driver.File) (driver.Machine, error) {
	m, found, err := d.Find(ctx, workspace)
	if err == nil && (!found || !m.Running) {
		err = fmt.Errorf("expected a running machine after RunImage, seen %v by Find", map[bool]string{true: "a stopped one", false: "none"}[found])
	}
	for _, f := range files {
		if err == nil {
			err = d.put(ctx, workspace, f)
		}
	}
	return m, err
}

// put copies a file into a machine, mode and all.
func (d drv) put(ctx context.Context, workspace string, file driver.File) error {
	source, err := os.Open(file.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	to := shellescape.Quote(file.Target)
	script := fmt.Sprintf("mkdir -p %s && cat >%s && chmod %o %s", shellescape.Quote(path.Dir(file.Target)), to, info.Mode().Perm(), to)
	var said proc.Tail
	code, err := d.exec(ctx, &pb.ExecStart{WorkspaceId: workspace, Argv: []string{"/bin/sh", "-c", script}, User: "root"},
		driver.Streams{In: source, Out: &said, Err: &said})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, said.String())
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s in the machine: %w", file.Source, file.Target, err)
	}
	return nil
}

// Start implements driver.Driver.
func (d drv) Start(ctx context.Context, workspace string) error {
	_, err := d.Calls.Start(ctx, &pb.StartRequest{WorkspaceId: workspace})
	return d.Explain("Start", err)
}

// Stop implements driver.Driver.
func (d drv) Stop(ctx context.Context, workspace string) error {
	_, err := d.Calls.Stop(ctx, &pb.StopRequest{WorkspaceId: workspace})
	return d.Explain("Stop", err)
}

// Delete implements driver.Driver.
func (d drv) Delete(ctx context.Context, workspace string) error {
	_, err := d.Calls.Delete(ctx, &pb.DeleteRequest{WorkspaceId: workspace})
	return d.Explain("Delete", err)
}

// Exec implements driver.Driver. A command that a signal ended is an error.
func (d drv) Exec(ctx context.Context, workspace string, argv []string, s driver.Streams) (int, error) {
	return d.exec(ctx, &pb.ExecStart{WorkspaceId: workspace, Argv: argv}, s)
}

func (d drv) exec(ctx context.Context, start *pb.ExecStart, s driver.Streams) (int, error) {
	exit, err := d.Runtime.Exec(ctx, start, s)
	switch {
	case err != nil:
		return -1, d.Explain("Exec", err)
	case exit.GetSignal() != "":
		return -1, d.Explain("Exec", fmt.Errorf("the command was ended by the signal %s", exit.GetSignal()))
	}
	return int(exit.GetExitCode()), nil
}

// Exec runs a command and gives how it ended. Errors are gRPC's. When it returns, a read of s.In may still be under way: nothing can end
// that of a terminal. What it reads is lost.
func (r *Runtime) Exec(ctx context.Context, start *pb.ExecStart, s driver.Streams) (*pb.ExecExit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.Calls.Exec(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&pb.ExecClientMessage{Payload: &pb.ExecClientMessage_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err // io.EOF: the answer says why
	}
	inputBroke := make(chan error, 1)
	go func() {
		if err := sendInput(stream, s.In); err != nil {
			inputBroke <- err
			cancel()
		}
	}()
	exit, err := receiveOutput(stream, s)
	select {
	case broke := <-inputBroke:
		return nil, broke
	default:
		return exit, err
	}
}

// sendInput sends what it reads, and the end of it. Its error is that of the reading: one of the stream ends the stream, which says more.
func sendInput(stream pb.RuntimeDriver_ExecClient, in io.Reader) error {
	buffer := make([]byte, pb.MaxFrame)
	for in != nil {
		n, err := in.Read(buffer)
		if n > 0 && stream.Send(&pb.ExecClientMessage{Payload: &pb.ExecClientMessage_Stdin{Stdin: buffer[:n]}}) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the command's input: %w", err)
		}
	}
	if stream.Send(&pb.ExecClientMessage{Payload: &pb.ExecClientMessage_CloseStdin{CloseStdin: &pb.CloseStdin{}}}) == nil {
		_ = stream.CloseSend()
	}
	return nil
}

// receiveOutput writes what comes until the exit, which must come, and come last.
func receiveOutput(stream pb.RuntimeDriver_ExecClient, s driver.Streams) (exit *pb.ExecExit, err error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if exit == nil {
				return nil, errors.New("the stream ended without an exit: how the command ended is not known")
			}
			return exit, nil
		}
		if err != nil {
			return nil, err
		}
		if exit != nil {
			return nil, errors.New("expected the end of the stream after the exit, seen another frame")
		}
		var to io.Writer
		switch m.GetPayload().(type) {
		case *pb.ExecServerMessage_Stdout:
			to = s.Out
		case *pb.ExecServerMessage_Stderr:
			to = s.Err
		case *pb.ExecServerMessage_Exit:
			exit = m.GetExit()
			continue
		default:
			return nil, errors.New("expected output or an exit, seen a frame without payload")
		}
		if to == nil {
			continue
		}
		data := m.GetStdout().GetData()
		if m.GetStderr() != nil {
			data = m.GetStderr().GetData()
		}
		if _, err := to.Write(data); err != nil {
			return nil, fmt.Errorf("write the command's output: %w", err)
		}
	}
}
