package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// optionChecks are about the options of a MicroSandbox provider, which reach a runtime as environment variables.
func (s *suite) optionChecks() []check {
	const egress, memory, inactivity = "MICROSANDBOX_BLOCK_EGRESS", "MICROSANDBOX_MEMORY", "INACTIVITY_TIMEOUT"
	checks := []check{
		{"options: a boolean may be any that Go parses", "MICROSANDBOX_BLOCK_EGRESS may be 1, TRUE, 0 or false.", []string{preflights},
			func(ctx context.Context) (string, string, error) {
				return s.accepted(ctx, egress, "1", "TRUE", "0", "false")
			}},
		{"options: a boolean that is none is refused", "MICROSANDBOX_BLOCK_EGRESS may not be yes, and the error names the option.", []string{preflights},
			func(ctx context.Context) (string, string, error) { return s.refused(ctx, egress, "yes", "on", "2") }},
		{"options: a number that is none is refused", "MICROSANDBOX_MEMORY may not be a word, a fraction or negative, and the error names the option.",
			[]string{preflights}, func(ctx context.Context) (string, string, error) {
				return s.refused(ctx, memory, "many", "1.5", "-1", "2GB")
			}},
		{"options: a duration that is none is refused", "INACTIVITY_TIMEOUT may not be a word or a number without a unit, and the error names the option.",
			[]string{preflights}, func(ctx context.Context) (string, string, error) {
				return s.refused(ctx, inactivity, "soon", "90", "-5m")
			}},
	}
	return checks
}

// accepted checks that Preflight has nothing against the values.
func (s *suite) accepted(ctx context.Context, name string, values ...string) (expected, seen string, err error) {
	expected = fmt.Sprintf("success of Preflight with %s as each of %s", name, strings.Join(values, ", "))
	for _, value := range values {
		err := s.with(ctx, func(r *runtimeclient.Runtime) error {
			_, err := r.Calls.Preflight(ctx, &pb.PreflightRequest{})
			return r.Explain("Preflight", err)
		}, name+"="+value)
		if err != nil {
			return expected, "", fmt.Errorf("%s=%s: %w", name, value, err)
		}
	}
	return expected, "the same", nil
}

// refused checks that no machine is made with any of the values: Preflight, RunImage or the start says why.
func (s *suite) refused(ctx context.Context, name string, values ...string) (expected, seen string, err error) {
	expected = fmt.Sprintf("an error that names %s, for each of %s, and no machine", name, strings.Join(values, ", "))
	var said []string
	for _, value := range values {
		err := s.with(ctx, func(r *runtimeclient.Runtime) error { return s.refusedBy(ctx, r, name) }, name+"="+value)
		var started *runtimeclient.StartError
		var known *breach
		switch {
		case errors.As(err, &known):
			return broken(expected, "with %s=%s, %s", name, value, known.seen)
		case errors.As(err, &started) && !strings.Contains(started.Error(), name):
			return broken(expected, "with %s=%s, %v", name, value, err)
		}
		said = append(said, err.Error())
	}
	return expected, said[0], nil
}

// refusedBy gives how a runtime refuses to make a machine. One that it made is removed.
func (s *suite) refusedBy(ctx context.Context, r *runtimeclient.Runtime, name string) error {
	_, err := r.Calls.Preflight(ctx, &pb.PreflightRequest{})
	if err == nil {
		if _, err = r.Calls.RunImage(ctx, &pb.RunImageRequest{WorkspaceId: s.absent, Image: s.Image}); err == nil {
			_, err = r.Calls.Delete(ctx, &pb.DeleteRequest{WorkspaceId: s.absent})
			return errors.Join(&breach{"a machine was made"}, err)
		}
	}
	code := status.Code(err)
	if err = pb.FromStatus(err); code != codes.InvalidArgument && code != codes.FailedPrecondition || !strings.Contains(err.Error(), name) {
		return &breach{fmt.Sprintf("the status %s: %v", code, err)}
	}
	return err
}
