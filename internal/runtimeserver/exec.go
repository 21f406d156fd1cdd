package runtimeserver

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"dagger/parity/internal/reference/driver"
	pb "dagger/parity/internal/runtimeproto"
)

// quiet is how long the output of a command that has ended must have had nothing to read before the rest is given up: something that
// outlived the command holds it open.
const quiet = 2 * time.Second

type execStream = grpc.BidiStreamingServer[pb.ExecClientMessage, pb.ExecServerMessage]

// Exec runs a command. Bytes pass in both directions at the same time, each no faster than its reader takes them.
func (s service) Exec(stream execStream) error {
	start, err := execStart(stream)
	if err != nil {
		return pb.ToStatus(err)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	p, err := newPipes()
	if err != nil {
		return pb.ToStatus(err)
	}
	defer p.close()

	// The stream can be received from while it is sent to, but two may not send at once.
	var sending sync.Mutex
	send := func(m *pb.ExecServerMessage) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(m)
	}
	var output sync.WaitGroup
	ended := make(chan struct{})
	deliver := func(from *os.File, wrap func(*pb.OutputChunk) *pb.ExecServerMessage) {
		output.Go(func() {
			if err := forward(frames(func(c *pb.OutputChunk) error { return send(wrap(c)) }), from, ended); err != nil {
				cancel(err) // the client has gone
			}
		})
	}
	deliver(p.out.read, func(c *pb.OutputChunk) *pb.ExecServerMessage {
		return &pb.ExecServerMessage{Payload: &pb.ExecServerMessage_Stdout{Stdout: c}}
	})
	deliver(p.err.read, func(c *pb.OutputChunk) *pb.ExecServerMessage {
		return &pb.ExecServerMessage{Payload: &pb.ExecServerMessage_Stderr{Stderr: c}}
	})
	go func() {
		if err := receive(stream, p.in.write); err != nil {
			cancel(err)
		}
	}()

	exit, err := s.runtime.Exec(ctx, start, driver.Streams{In: p.in.read, Out: p.out.write, Err: p.err.write})
	close(ended)
	_ = p.out.write.Close()
	_ = p.err.write.Close()
	_ = p.in.read.Close() // a frame that the command did not take is taken from the client, and dropped
	output.Wait()
	var broken *pb.Error
	if errors.As(context.Cause(ctx), &broken) { // the client broke a rule, and the command was ended for it
		return pb.ToStatus(broken)
	}
	if err == nil {
		err = send(&pb.ExecServerMessage{Payload: &pb.ExecServerMessage_Exit{Exit: exit}})
	}
	return pb.ToStatus(err)
}

// execStart takes the first frame, which must be a start.
func execStart(stream execStream) (*pb.ExecStart, error) {
	m, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, pb.Errorf(pb.InvalidArgument, "the first frame: expected a start, seen the end of the stream")
	}
	if err != nil {
		return nil, err
	}
	start := m.GetStart()
	switch {
	case start == nil:
		return nil, pb.Errorf(pb.InvalidArgument, "the first frame: expected a start, seen %s", kind(m))
	case start.GetWorkspaceId() == "":
		return nil, pb.Errorf(pb.InvalidArgument, "workspace_id: expected one, seen none")
	case len(start.GetArgv()) == 0 || start.GetArgv()[0] == "":
		return nil, pb.Errorf(pb.InvalidArgument, "argv: expected a command, seen none")
	case start.GetTty():
		return nil, pb.Errorf(pb.InvalidArgument, "tty: there are no terminals here")
	}
	return start, nil
}

// receive takes the client's frames: its error is an *pb.Error when the client broke a rule, and the stream's otherwise.
func receive(stream execStream, stdin *os.File) error {
	defer stdin.Close()
	closed := false
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && closed:
			return nil
		case errors.Is(err, io.EOF):
			return pb.Errorf(pb.InvalidArgument, "the stream ended: expected close_stdin before its end")
		case err != nil:
			return err
		}
		switch m.GetPayload().(type) {
		case *pb.ExecClientMessage_Stdin:
			data := m.GetStdin()
			if len(data) == 0 || len(data) > pb.MaxFrame {
				return pb.Errorf(pb.InvalidArgument, "stdin: expected a frame of 1 to %d bytes, seen %d", pb.MaxFrame, len(data))
			}
			if closed {
				return pb.Errorf(pb.InvalidArgument, "expected nothing after close_stdin, seen stdin")
			}
			_, _ = stdin.Write(data) // a command that reads no more, or has ended, is no fault of the client's
		case *pb.ExecClientMessage_CloseStdin:
			if closed {
				return pb.Errorf(pb.InvalidArgument, "expected one close_stdin, seen another")
			}
			closed = true
			_ = stdin.Close()
		default:
			return pb.Errorf(pb.InvalidArgument, "expected stdin or close_stdin, seen %s", kind(m))
		}
	}
}

// kind says what a frame is.
func kind(m *pb.ExecClientMessage) string {
	switch m.GetPayload().(type) {
	case *pb.ExecClientMessage_Start:
		return "start"
	case *pb.ExecClientMessage_Stdin:
		return "stdin"
	case *pb.ExecClientMessage_CloseStdin:
		return "close_stdin"
	}
	return "a frame without payload"
}

// forward sends what comes out of a pipe until its end, and once ended is closed also until it was quiet for a while. A client that is slow
// to take what is sent is waited for.
func forward(to io.Writer, pipe *os.File, ended <-chan struct{}) error {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-ended:
			_ = pipe.SetReadDeadline(time.Now().Add(quiet))
		case <-stop:
		}
	}()
	buffer := make([]byte, pb.MaxFrame)
	for {
		n, err := pipe.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		select {
		case <-ended:
			_ = pipe.SetReadDeadline(time.Now().Add(quiet))
		default:
		}
		switch {
		case err == nil || errors.Is(err, os.ErrDeadlineExceeded) && n > 0:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// pipe is a pipe of the operating system: a command gets its end as it is.
type pipe struct{ read, write *os.File }

type pipes struct{ in, out, err pipe }

func newPipes() (*pipes, error) {
	var p pipes
	var errs [3]error
	p.in.read, p.in.write, errs[0] = os.Pipe()
	p.out.read, p.out.write, errs[1] = os.Pipe()
	p.err.read, p.err.write, errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		p.close()
		return nil, err
	}
	return &p, nil
}

// close closes what is open still.
func (p *pipes) close() {
	for _, f := range []*os.File{p.in.read, p.in.write, p.out.read, p.out.write, p.err.read, p.err.write} {
		_ = f.Close() // of a nil one it is an error
	}
}
