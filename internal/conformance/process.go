package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// The checks that others stand on.
const (
	runs         = "process: it runs until its handshake"
	inTime       = "handshake: it comes within the deadline"
	isHandshake  = "handshake: it is the first line and leads to a gRPC server"
	isVersion    = "handshake: protocol version 1"
	infoComplete = "Info: it answers with what it must have"
	apiVersion   = "Info: API version 1"
	preflights   = "Preflight: succeeds"
)

// processChecks look at the start, which is made once: each check is about one way in which it can fail.
func (s *suite) processChecks() []check {
	start := func(why ...string) func(context.Context) (string, string, error) {
		return func(ctx context.Context) (string, string, error) { return s.start(ctx, why) }
	}
	return []check{
		{runs, "The program can be run, and does not end before its handshake.", nil, start(runtimeclient.NotStarted, runtimeclient.Crashed)},
		{inTime, "The handshake comes within 15 seconds of the start.", []string{runs}, start(runtimeclient.TooSlow)},
		{isHandshake, "The first line on standard output is a handshake of go-plugin, and a gRPC server is where it says.",
			[]string{inTime}, start(runtimeclient.BadHandshake)},
		{isVersion, "The handshake is of protocol version 1.", []string{isHandshake}, start(runtimeclient.WrongVersion)},
		{apiVersion, "Info says that the API's major version is 1.", []string{isVersion}, start(runtimeclient.WrongAPI)},
		{infoComplete, "Info answers, has driver_name, driver_version, runtime_name and capabilities, and no unknown mount type or recreate mode.",
			[]string{apiVersion}, start(runtimeclient.FailedInfo)},
		{"process: it does not serve when it is run by hand",
			"Without the cookie of the handshake in its environment, the program exits with an error and prints no handshake.", []string{infoComplete}, s.byHand},
		{"process: it ends when it is asked to", "Asked to shut down, the runtime exits by itself within 2 seconds.", []string{infoComplete}, s.shutdown},
		{"TargetArchitecture: amd64 or arm64", "TargetArchitecture names the architecture as Go does.", []string{infoComplete}, s.asking(s.architecture)},
		{preflights, "With no option set, Preflight succeeds.", []string{infoComplete}, s.asking(s.preflight)},
	}
}

func (s *suite) byHand(ctx context.Context) (expected, seen string, err error) {
	expected = "an exit code that is not 0, and no handshake on standard output"
	ctx, cancel := context.WithTimeout(ctx, s.Answer)
	defer cancel()
	cookie := pb.Handshake().MagicCookieKey + "="
	res, err := proc.Run(ctx, proc.Cmd{
		Argv: append([]string{s.Runtime.Path}, s.Runtime.Args...), Dir: s.Runtime.Dir,
		Env: slices.DeleteFunc(slices.Clone(s.environ()), func(entry string) bool { return strings.HasPrefix(entry, cookie) }),
	})
	code, exited := proc.ExitCode(err)
	seen = fmt.Sprintf("exit code %d, and %.200q on standard output", code, res.Stdout)
	switch {
	case strings.Count(string(res.Stdout), "|") >= 3:
		return broken(expected, "the handshake %.200q", res.Stdout)
	case err == nil:
		return broken(expected, "%s", seen)
	case !exited && errors.Is(err, context.DeadlineExceeded):
		return broken(expected, "it still ran after %s", s.Answer)
	case !exited:
		return expected, "", err
	}
	return expected, seen, nil
}

func (s *suite) environ() []string {
	if s.Runtime.Env == nil {
		return os.Environ()
	}
	return s.Runtime.Env
}

// start looks at how the first start went: whether it failed in one of these ways.
func (s *suite) start(ctx context.Context, why []string) (expected, seen string, err error) {
	expected = "a start that is not: " + strings.Join(why, " or ")
	if s.info == nil && s.startErr == nil {
		s.startErr = s.with(ctx, func(r *runtimeclient.Runtime) error {
			s.info = r.Info
			return nil
		})
	}
	if s.startErr == nil {
		return expected, fmt.Sprintf("%s %s for %s, API %d.%d", s.info.GetDriverName(), s.info.GetDriverVersion(), s.info.GetRuntimeName(),
			s.info.GetApiMajor(), s.info.GetApiMinor()), nil
	}
	var failed *runtimeclient.StartError
	if !errors.As(s.startErr, &failed) || slices.Contains(why, failed.Why) || failed.Why == "" {
		return broken(expected, "%v", s.startErr)
	}
	return expected, "not that, but: " + failed.Why, nil
}

func (s *suite) shutdown(ctx context.Context) (expected, seen string, err error) {
	expected = "an exit by itself"
	var r *runtimeclient.Runtime
	if err := s.with(ctx, func(running *runtimeclient.Runtime) error { r = running; return nil }); err != nil {
		return expected, err.Error(), err
	}
	if !r.EndedItself() {
		return broken(expected, "it had to be made to end")
	}
	return expected, "the same", nil
}

func (s *suite) architecture(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "amd64 or arm64"
	res, err := r.Calls.TargetArchitecture(ctx, &pb.TargetArchitectureRequest{})
	if err != nil {
		return expected, "", r.Explain("TargetArchitecture", err)
	}
	if a := res.GetArchitecture(); a != "amd64" && a != "arm64" {
		return broken(expected, "%q", a)
	}
	return expected, res.GetArchitecture(), nil
}

func (s *suite) preflight(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "success"
	_, err = r.Calls.Preflight(ctx, &pb.PreflightRequest{})
	return expected, expected, r.Explain("Preflight", err)
}
