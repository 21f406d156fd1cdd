package runtimefake

import (
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	pb "dagger/parity/internal/runtimeproto"
)

func (f *faulty) Exec(s grpc.BidiStreamingServer[pb.ExecClientMessage, pb.ExecServerMessage]) error {
	return f.RuntimeDriverServer.Exec(&faultyExec{BidiStreamingServer: s, fault: f.fault})
}

// faultyExec spoils what goes over an Exec: a fault of the order of frames is to hide the frame that breaks the rule.
type faultyExec struct {
	grpc.BidiStreamingServer[pb.ExecClientMessage, pb.ExecServerMessage]
	fault Fault

	mu      sync.Mutex // of what the sending side keeps
	started bool
	closed  bool
	lost    bool
	inputs  chan struct{}
}

func (s *faultyExec) Recv() (*pb.ExecClientMessage, error) {
	for {
		m, err := s.BidiStreamingServer.Recv()
		if errors.Is(err, io.EOF) && s.fault == NoFrameHangs && !s.started {
			<-s.Context().Done()
			return nil, s.Context().Err()
		}
		if errors.Is(err, io.EOF) && s.fault == EndWithoutClose && !s.closed {
			s.release()
			return &pb.ExecClientMessage{Payload: &pb.ExecClientMessage_CloseStdin{CloseStdin: &pb.CloseStdin{}}}, nil
		}
		if err != nil {
			return m, err
		}
		if !s.started && (m.GetCloseStdin() != nil && s.fault == CloseFirstHangs || m.GetStdin() != nil && s.fault == StdinFirstHangs) {
			<-s.Context().Done()
			return nil, s.Context().Err()
		}
		again, after, n := s.started, s.closed, len(m.GetStdin())
		isStdin := false
		switch m.GetPayload().(type) {
		case *pb.ExecClientMessage_Start:
			s.started = true
			if again && s.fault == StartTwice {
				continue
			}
			if s.fault == TTYAccepted {
				m.GetStart().Tty = false
			}
			if s.fault == NoArgvAccepted && len(m.GetStart().GetArgv()) == 0 {
				m.GetStart().Argv = []string{"sleep", "600"}
			}
		case *pb.ExecClientMessage_Stdin:
			isStdin = true
			if n == 1 && s.fault == SmallFrameRefused {
				m.Payload = &pb.ExecClientMessage_Stdin{}
			}
		case *pb.ExecClientMessage_CloseStdin:
			s.release()
			if after && s.fault == CloseTwice {
				continue
			}
		default:
			if s.fault == FrameWithoutValue {
				continue
			}
		}
		switch {
		case isStdin && n == 0 && s.fault == EmptyFrame,
			isStdin && n > pb.MaxFrame && s.fault == LargeFrame,
			isStdin && after && s.fault == StdinAfterClose:
			continue
		}
		return m, nil
	}
}

// release notes that the input is closed, and lets go of what ExecTakesTurns has held back.
func (s *faultyExec) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.inputs != nil {
		close(s.inputs)
		s.inputs = nil
	}
}

func (s *faultyExec) Send(m *pb.ExecServerMessage) error {
	switch s.fault {
	case ExecNoExit:
		if m.GetExit() != nil {
			return nil
		}
	case ExecByteLost:
		if d := m.GetStdout(); len(d.GetData()) > 1000 && !s.lost {
			s.lost = true
			d.Data = d.Data[1:]
		}
	case ExecTakesTurns, ExecWaitsForInput:
		s.mu.Lock()
		if !s.closed && s.inputs == nil {
			s.inputs = make(chan struct{})
		}
		wait := s.inputs
		s.mu.Unlock()
		if wait != nil && (m.GetExit() == nil) == (s.fault == ExecTakesTurns) {
			select {
			case <-wait:
			case <-s.Context().Done():
			}
		}
	}
	return s.BidiStreamingServer.Send(m)
}
