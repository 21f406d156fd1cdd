package runtimefake

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "dagger/parity/internal/runtimeproto"
)

// Fault is a way to misbehave.
type Fault string

// The faults of the handshake and of the process.
const (
	CrashBeforeHandshake Fault = "crash-before-handshake"
	NoHandshake          Fault = "no-handshake"
	GarbageFirst         Fault = "garbage-first"
	WrongProtocol        Fault = "wrong-protocol"
	DeadAddress          Fault = "dead-address"
	WrongAPI             Fault = "wrong-api"
	InfoIncomplete       Fault = "info-incomplete"
	InfoHangs            Fault = "info-hangs"
	ServesByHand         Fault = "serves-by-hand"
	OutlivesHost         Fault = "outlives-host"
	IgnoresShutdown      Fault = "ignores-shutdown"
)

// The faults of single calls.
const (
	ArchitectureUnknown  Fault = "architecture-unknown"
	FindMissingFails     Fault = "find-missing-fails"
	FindTimeWrong        Fault = "find-time-wrong"
	FindStatusWrong      Fault = "find-status-wrong"
	RunTwice             Fault = "run-twice"
	RunAgainRemoves      Fault = "run-again-removes"
	RunStopped           Fault = "run-stopped"
	StartRunningFails    Fault = "start-running-fails"
	StartMissingSucceeds Fault = "start-missing-succeeds"
	StartDoesNothing     Fault = "start-does-nothing"
	StopStoppedFails     Fault = "stop-stopped-fails"
	StopDoesNothing      Fault = "stop-does-nothing"
	DeleteMissingFails   Fault = "delete-missing-fails"
	DeleteDoesNothing    Fault = "delete-does-nothing"
	ErrorWithoutDetail   Fault = "error-without-detail"
	ErrorOtherCode       Fault = "error-other-code"
	LogsMissing          Fault = "logs-missing"
	LogsNeverEnd         Fault = "logs-never-end"
	BooleanOneRefused    Fault = "boolean-one-refused"
	BooleanYesAccepted   Fault = "boolean-yes-accepted"
	NumberUnchecked      Fault = "number-unchecked"
	DurationUnchecked    Fault = "duration-unchecked"
	PreflightFails       Fault = "preflight-fails"
	AnyImageRuns         Fault = "any-image-runs"
	RunNothing           Fault = "run-nothing"
)

// The faults of Exec.
const (
	ExecBoots         Fault = "exec-boots"
	ExecMergesStderr  Fault = "exec-merges-stderr"
	ExecCodeLost      Fault = "exec-code-lost"
	ExecSignalLost    Fault = "exec-signal-lost"
	ExecNoExit        Fault = "exec-no-exit"
	ExecByteLost      Fault = "exec-byte-lost"
	ExecTakesTurns    Fault = "exec-takes-turns" // no output before the whole input
	ExecCrashes       Fault = "exec-crashes"
	CancelIgnored     Fault = "cancel-ignored"
	TTYAccepted       Fault = "tty-accepted"
	StdinFirstHangs   Fault = "stdin-first-hangs"
	StartTwice        Fault = "start-twice"
	EmptyFrame        Fault = "empty-frame"
	LargeFrame        Fault = "large-frame"
	StdinAfterClose   Fault = "stdin-after-close"
	CloseTwice        Fault = "close-twice"
	EndWithoutClose   Fault = "end-without-close"
	FrameWithoutValue Fault = "frame-without-value"
	CloseFirstHangs   Fault = "close-first-hangs"
	NoFrameHangs      Fault = "no-frame-hangs"
	NoArgvAccepted    Fault = "no-argv-accepted"
	SmallFrameRefused Fault = "small-frame-refused"
	ExecMissingRuns   Fault = "exec-missing-runs"
	ExecJoinsArgv     Fault = "exec-joins-argv"
	ExecEnvLost       Fault = "exec-env-lost"
	ExecWaitsForInput Fault = "exec-waits-for-input"
	ExecLostAtRestart Fault = "exec-lost-at-restart"
)

// Faults lists every fault.
func Faults() []Fault {
	return []Fault{
		CrashBeforeHandshake, NoHandshake, GarbageFirst, WrongProtocol, DeadAddress, WrongAPI, InfoIncomplete, InfoHangs, ServesByHand,
		OutlivesHost, IgnoresShutdown,
		ArchitectureUnknown, FindMissingFails, FindTimeWrong, FindStatusWrong, RunTwice, RunAgainRemoves, RunStopped, StartRunningFails, StartMissingSucceeds,
		StartDoesNothing, StopStoppedFails, StopDoesNothing, DeleteMissingFails, DeleteDoesNothing, ErrorWithoutDetail, ErrorOtherCode,
		LogsMissing, LogsNeverEnd, BooleanOneRefused, BooleanYesAccepted, NumberUnchecked, DurationUnchecked,
		ExecBoots, ExecMergesStderr, ExecCodeLost, ExecSignalLost, ExecNoExit, ExecByteLost, ExecTakesTurns, ExecCrashes,
		CancelIgnored, TTYAccepted, StdinFirstHangs, StartTwice, EmptyFrame, LargeFrame, StdinAfterClose, CloseTwice, EndWithoutClose,
		FrameWithoutValue, CloseFirstHangs, NoFrameHangs, NoArgvAccepted, SmallFrameRefused, ExecMissingRuns, ExecJoinsArgv, ExecEnvLost,
		ExecWaitsForInput, ExecLostAtRestart, PreflightFails, AnyImageRuns, RunNothing,
	}
}

// beforeHandshake misbehaves before the handshake, or instead of it: done is true when there is nothing left to do then.
func (f Fault) beforeHandshake() (code int, done bool) {
	h := pb.Handshake()
	if os.Getenv(h.MagicCookieKey) != h.MagicCookieValue && f != ServesByHand {
		return 0, false // that it is run by hand is another matter
	}
	switch f {
	case CrashBeforeHandshake:
		fmt.Fprintln(os.Stderr, "fake: no room for another machine")
		return 7, true
	case NoHandshake:
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case GarbageFirst:
		fmt.Println("Welcome to the fake runtime!")
	case WrongProtocol:
		fmt.Println("1|2|unix|/nonexistent|grpc|")
		time.Sleep(time.Hour)
	case DeadAddress:
		fmt.Println("1|1|unix|/nonexistent|grpc|")
		time.Sleep(time.Hour)
	case ServesByHand:
		_ = os.Setenv(h.MagicCookieKey, h.MagicCookieValue)
	case OutlivesHost:
		signal.Ignore(syscall.SIGTERM)
	}
	return 0, false
}

// afterServing misbehaves once the host has asked for the end. Only the first processes do, or a test would take minutes.
func (f Fault) afterServing() {
	if f == IgnoresShutdown && starts <= 3 {
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	}
}

// ignores tells whether the fault is to overlook what is wrong with the options.
func (f Fault) ignores(wrong error) bool {
	text := wrong.Error()
	switch f {
	case BooleanYesAccepted:
		return strings.Contains(text, `"yes"`)
	case NumberUnchecked:
		return strings.Contains(text, "whole number")
	case DurationUnchecked:
		return strings.Contains(text, "duration")
	}
	return false
}

// faulty spoils the answers of a service that is in order.
type faulty struct {
	pb.RuntimeDriverServer
	fault Fault
}

func (f *faulty) Info(ctx context.Context, r *pb.InfoRequest) (*pb.InfoResponse, error) {
	if f.fault == InfoHangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	i, err := f.RuntimeDriverServer.Info(ctx, r)
	switch f.fault {
	case WrongAPI:
		i.ApiMajor = 2
	case InfoIncomplete:
		i.DriverName = ""
	}
	return i, err
}

func (f *faulty) Preflight(ctx context.Context, r *pb.PreflightRequest) (*pb.PreflightResponse, error) {
	if f.fault == PreflightFails {
		return nil, pb.ToStatus(pb.Errorf(pb.Unavailable, "the weather is not right"))
	}
	if f.fault == BooleanOneRefused && os.Getenv("MICROSANDBOX_BLOCK_EGRESS") == "1" {
		return nil, pb.ToStatus(pb.Errorf(pb.InvalidArgument, "option MICROSANDBOX_BLOCK_EGRESS: expected true or false"))
	}
	return f.RuntimeDriverServer.Preflight(ctx, r)
}

func (f *faulty) Find(ctx context.Context, r *pb.FindRequest) (*pb.FindResponse, error) {
	res, err := f.RuntimeDriverServer.Find(ctx, r)
	if res.GetFound() && f.fault == FindTimeWrong {
		res.Container.CreatedAt = "yesterday"
	}
	if res.GetFound() && f.fault == FindStatusWrong {
		res.Container.State.Status = "Up 3 seconds"
	}
	return res, err
}

func (f *faulty) Start(ctx context.Context, r *pb.StartRequest) (*pb.StartResponse, error) {
	res, err := f.RuntimeDriverServer.Start(ctx, r)
	if err != nil && f.fault == ErrorWithoutDetail {
		err = status.Error(status.Code(err), "it went wrong")
	}
	if err != nil && f.fault == ErrorOtherCode {
		err = status.Error(codes.Internal, "it went wrong")
	}
	return res, err
}

func (f *faulty) Logs(r *pb.LogsRequest, s grpc.ServerStreamingServer[pb.OutputChunk]) error {
	if f.fault == LogsMissing {
		return status.Error(codes.Unimplemented, "no logs")
	}
	return f.RuntimeDriverServer.Logs(r, s)
}
