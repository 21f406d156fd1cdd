package runtimeproto

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/driver"
)

// Short names of the kinds of errors.
const (
	Unknown            = RuntimeErrorCode_RUNTIME_ERROR_CODE_UNKNOWN
	NotFound           = RuntimeErrorCode_RUNTIME_ERROR_CODE_NOT_FOUND
	AlreadyExists      = RuntimeErrorCode_RUNTIME_ERROR_CODE_ALREADY_EXISTS
	InvalidArgument    = RuntimeErrorCode_RUNTIME_ERROR_CODE_INVALID_ARGUMENT
	Unsupported        = RuntimeErrorCode_RUNTIME_ERROR_CODE_UNSUPPORTED
	Unavailable        = RuntimeErrorCode_RUNTIME_ERROR_CODE_UNAVAILABLE
	FailedPrecondition = RuntimeErrorCode_RUNTIME_ERROR_CODE_FAILED_PRECONDITION
	PermissionDenied   = RuntimeErrorCode_RUNTIME_ERROR_CODE_PERMISSION_DENIED
	Timeout            = RuntimeErrorCode_RUNTIME_ERROR_CODE_TIMEOUT
	Cancelled          = RuntimeErrorCode_RUNTIME_ERROR_CODE_CANCELLED
	RuntimeFailure     = RuntimeErrorCode_RUNTIME_ERROR_CODE_RUNTIME_FAILURE
	Incompatible       = RuntimeErrorCode_RUNTIME_ERROR_CODE_INCOMPATIBLE_VERSION
)

// statusCodes are the gRPC codes that the kinds of errors travel with.
var statusCodes = map[RuntimeErrorCode]codes.Code{
	Unknown:            codes.Unknown,
	NotFound:           codes.NotFound,
	AlreadyExists:      codes.AlreadyExists,
	InvalidArgument:    codes.InvalidArgument,
	Unsupported:        codes.Unimplemented,
	Unavailable:        codes.Unavailable,
	FailedPrecondition: codes.FailedPrecondition,
	PermissionDenied:   codes.PermissionDenied,
	Timeout:            codes.DeadlineExceeded,
	Cancelled:          codes.Canceled,
	RuntimeFailure:     codes.Internal,
	Incompatible:       codes.FailedPrecondition,
}

// StatusCode is the gRPC code that a kind of error travels with.
func StatusCode(kind RuntimeErrorCode) codes.Code {
	if code, known := statusCodes[kind]; known {
		return code
	}
	return codes.Unknown
}

// Error is an error of a runtime: what it returns, and what a host gets.
type Error struct {
	Code    RuntimeErrorCode
	Message string // for a person
	Runtime string // what the machinery behind the runtime said
	Status  codes.Code
}

// Errorf makes an error of a kind.
func Errorf(kind RuntimeErrorCode, format string, args ...any) *Error {
	return &Error{Code: kind, Message: fmt.Sprintf(format, args...), Status: StatusCode(kind)}
}

// Error gives the message, and below it what the machinery said.
func (e *Error) Error() string {
	text := e.Message
	if e.Runtime != "" && !strings.Contains(text, e.Runtime) {
		text += "; the runtime's last words:\n    " + strings.ReplaceAll(strings.TrimSpace(e.Runtime), "\n", "\n    ")
	}
	return text
}

// Is makes an error of the protocol the driver's own, whose names callers know.
func (e *Error) Is(target error) bool {
	switch target {
	case driver.ErrNotFound:
		return e.Status == codes.NotFound
	case driver.ErrExists:
		return e.Status == codes.AlreadyExists
	case context.Canceled:
		return e.Status == codes.Canceled
	case context.DeadlineExceeded:
		return e.Status == codes.DeadlineExceeded
	}
	return false
}

// ToStatus makes of a driver's error what travels: a gRPC status with a RuntimeError as its one detail. The command line of a child
// process stays here, as it may hold the environment of a workspace.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	e := classify(err)
	s := status.New(e.Status, e.Message)
	detailed, detailErr := s.WithDetails(&RuntimeError{
		Code: e.Code, Message: e.Message, RuntimeMessage: e.Runtime, Retryable: e.Code == Unavailable || e.Code == Timeout,
	})
	if detailErr != nil { // only of a status that is OK, which this one is not
		return s.Err()
	}
	return detailed.Err()
}

func classify(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	kind, prefix := RuntimeFailure, ""
	for _, known := range []struct {
		is   error
		kind RuntimeErrorCode
	}{
		{context.Canceled, Cancelled}, {context.DeadlineExceeded, Timeout},
		{driver.ErrNotFound, NotFound}, {driver.ErrExists, AlreadyExists},
	} {
		if errors.Is(err, known.is) {
			kind, prefix = known.kind, known.is.Error()
			break
		}
	}
	var child *proc.Error
	if !errors.As(err, &child) {
		return Errorf(kind, "%v", err)
	}
	program := filepath.Base(child.Argv[0])
	if len(child.Argv) > 1 {
		program += " " + child.Argv[1]
	}
	how := fmt.Sprintf("`%s` ended with code %d after %s", program, child.ExitCode, child.Elapsed.Round(1e6))
	if child.ExitCode < 0 {
		how = fmt.Sprintf("`%s` did not start: %v", program, child.Cause)
	}
	if prefix != "" {
		how = prefix + ": " + how
	}
	e = Errorf(kind, "%s", how)
	e.Runtime = child.Stderr
	return e
}

// FromStatus makes of what a call returned an *Error, or nil of nil. Any other error is given back as it is.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &Error{Code: Unknown, Message: s.Message(), Status: s.Code()}
	for _, detail := range s.Details() {
		if d, ok := detail.(*RuntimeError); ok {
			e.Code, e.Runtime = d.GetCode(), d.GetRuntimeMessage()
			if d.GetMessage() != "" {
				e.Message = d.GetMessage()
			}
		}
	}
	if e.Message == "" {
		e.Message = s.Code().String()
	}
	return e
}
