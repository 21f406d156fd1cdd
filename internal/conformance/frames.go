package conformance

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// frames of an Exec, as a client sends them.
type frames []*pb.ExecClientMessage

func stdinFrame(size int) *pb.ExecClientMessage {
	return &pb.ExecClientMessage{Payload: &pb.ExecClientMessage_Stdin{Stdin: make([]byte, size)}}
}

func closeFrame() *pb.ExecClientMessage {
	return &pb.ExecClientMessage{Payload: &pb.ExecClientMessage_CloseStdin{CloseStdin: &pb.CloseStdin{}}}
}

// frameChecks are the rules of what a client may send. Each is broken while a command runs that does not end by itself, so that the command's
// exit cannot come first.
func (s *suite) frameChecks() []check {
	start := func() *pb.ExecClientMessage {
		return &pb.ExecClientMessage{Payload: &pb.ExecClientMessage_Start{Start: s.shell("exec sleep 600")}}
	}
	withTTY := func() *pb.ExecClientMessage {
		m := start()
		m.GetStart().Tty = true
		return m
	}
	withoutArgv := func() *pb.ExecClientMessage {
		m := start()
		m.GetStart().Argv = nil
		return m
	}
	var checks []check
	for _, c := range []struct {
		name, sentence string
		frames         func() frames
		end            bool // the client ends its side
	}{
		{"stdin before the start", "the first frame is stdin", func() frames { return frames{stdinFrame(1), start()} }, false},
		{"close_stdin before the start", "the first frame is close_stdin", func() frames { return frames{closeFrame()} }, false},
		{"no frame at all", "the stream ends before a frame", func() frames { return nil }, true},
		{"a second start", "a start follows the start", func() frames { return frames{start(), start()} }, false},
		{"a start without a command", "argv is empty", func() frames { return frames{withoutArgv()} }, false},
		{"stdin without bytes", "a frame of stdin is empty", func() frames { return frames{start(), stdinFrame(0)} }, false},
		{"stdin of 32769 bytes", "a frame of stdin has more than 32768 bytes", func() frames { return frames{start(), stdinFrame(pb.MaxFrame + 1)} }, false},
		{"stdin after close_stdin", "stdin follows close_stdin", func() frames { return frames{start(), closeFrame(), stdinFrame(1)} }, false},
		{"a second close_stdin", "close_stdin comes twice", func() frames { return frames{start(), closeFrame(), closeFrame()} }, false},
		{"the end without close_stdin", "the client ends its side before close_stdin", func() frames { return frames{start(), stdinFrame(1)} }, true},
		{"a frame without payload", "a frame has no payload", func() frames { return frames{start(), {}} }, false},
	} {
		checks = append(checks, check{
			"Exec: " + c.name + " is InvalidArgument", "Exec fails with the status InvalidArgument when " + c.sentence + ".", []string{exits},
			s.asking(func(ctx context.Context, r *runtimeclient.Runtime) (string, string, error) {
				return s.invalid(ctx, r, c.frames(), c.end)
			}),
		})
	}
	return append(checks, check{
		"Exec: a terminal is refused", "Exec with tty fails with the status InvalidArgument or Unimplemented.", []string{exits},
		s.asking(func(ctx context.Context, r *runtimeclient.Runtime) (string, string, error) {
			return s.invalid(ctx, r, frames{withTTY()}, false)
		}),
	}, check{
		"Exec: stdin of 1 and of 32768 bytes is fine", "Frames of stdin of the least and of the most bytes are taken.", []string{echoes}, s.asking(s.frameSizes),
	})
}

// invalid sends frames that break a rule and checks the answer. A terminal may be refused as something that is not there.
func (s *suite) invalid(ctx context.Context, r *runtimeclient.Runtime, all frames, end bool) (expected, seen string, err error) {
	expected = fmt.Sprintf("the status %s within %s", codes.InvalidArgument, s.Answer)
	ctx, cancel := context.WithTimeout(ctx, s.Answer)
	defer cancel()
	stream, err := r.Calls.Exec(ctx)
	if err != nil {
		return expected, "", err
	}
	for _, m := range all {
		if stream.Send(m) != nil {
			break // the answer is there, and says why
		}
	}
	if end {
		_ = stream.CloseSend()
	}
	for {
		m, err := stream.Recv()
		if m.GetExit() != nil {
			return broken(expected, "%s", ending(m.GetExit()))
		}
		if err == nil {
			continue
		}
		code := status.Code(err)
		if code == codes.InvalidArgument || code == codes.Unimplemented && all.tty() {
			return expected, err.Error(), nil
		}
		if ctx.Err() != nil {
			return broken(expected, "no answer within %s", s.Answer)
		}
		return broken(expected, "%v", err)
	}
}

func (f frames) tty() bool { return len(f) > 0 && f[0].GetStart().GetTty() }

func (s *suite) frameSizes(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	const bytes = 1 + pb.MaxFrame
	expected = fmt.Sprintf("%d bytes through cat, and the exit code 0", bytes)
	stream, err := r.Calls.Exec(ctx)
	if err != nil {
		return expected, "", err
	}
	for _, m := range (frames{{Payload: &pb.ExecClientMessage_Start{Start: s.shell("exec cat")}}, stdinFrame(1), stdinFrame(pb.MaxFrame), closeFrame()}) {
		if stream.Send(m) != nil {
			break
		}
	}
	_ = stream.CloseSend()
	came := 0
	var exit *pb.ExecExit
	for exit == nil {
		m, err := stream.Recv()
		if err != nil {
			return broken(expected, "%d bytes, and then %v", came, err)
		}
		came += len(m.GetStdout().GetData())
		exit = m.GetExit()
	}
	if came != bytes || !succeeded(exit) {
		return broken(expected, "%d bytes, %s", came, ending(exit))
	}
	return expected, "the same", nil
}
