package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// The checks that others stand on.
const (
	findsNothing   = "Find: a missing workspace is no error"
	deletesNothing = "Delete: a missing workspace succeeds"
	startsNothing  = "Start: a missing workspace is NotFound"
	makes          = "RunImage: makes a machine"
	isRunning      = "Find: the machine is running after RunImage"
	keeps          = "RunImage: an existing workspace is AlreadyExists, and is kept"
	stops          = "Stop: the machine is stopped"
	starts         = "Start: a stopped machine is running"
)

// absentChecks are about a workspace that there is not.
func (s *suite) absentChecks() []check {
	return []check{
		{findsNothing, "Find of a workspace that there is not succeeds with found = false.", []string{infoComplete}, s.asking(s.findNothing)},
		{startsNothing, "Start of a workspace that there is not fails with the status NotFound.", []string{infoComplete}, s.asking(s.startNothing)},
		{"errors: they carry a RuntimeError", "The status of a failed call has one RuntimeError as a detail, with the code that fits and a message.",
			[]string{startsNothing}, s.asking(s.errorDetail)},
		{deletesNothing, "Delete of a workspace that there is not succeeds.", []string{infoComplete}, s.asking(s.deleteNothing)},
		{"Exec: a missing workspace is NotFound", "Exec in a workspace that there is not fails with the status NotFound.",
			[]string{infoComplete}, s.asking(s.execNothing)},
		{"RunImage: an image that cannot be found is an error", "RunImage of an image that there is not fails.",
			[]string{findsNothing}, s.asking(s.runNoImage)},
	}
}

// runChecks make the workspace.
func (s *suite) runChecks() []check {
	return []check{
		{makes, "RunImage succeeds, and Find finds the machine with an id.", []string{findsNothing}, s.asking(s.make)},
		{isRunning, "After RunImage, Find says running.", []string{makes}, s.asking(s.running)},
		{"Find: created_at is a time of RFC 3339", "Find gives the time at which the machine was made.", []string{makes}, s.asking(s.createdAt)},
		{keeps, "RunImage of a workspace that there is fails with the status AlreadyExists, and its machine runs on.",
			[]string{isRunning}, s.asking(s.makeAgain)},
		{"Start: a running machine succeeds", "Start of a machine that runs succeeds.", []string{keeps}, s.asking(s.startRunning)},
	}
}

// endChecks stop, start and delete the workspace.
func (s *suite) endChecks() []check {
	return []check{
		{stops, "Stop succeeds, and Find then says stopped.", []string{keeps}, s.asking(s.stop)},
		{"Stop: a stopped machine succeeds", "Stop of a machine that is stopped succeeds.", []string{stops}, s.asking(s.stopAgain)},
		{"Exec: a stopped machine is refused", "Exec in a machine that is stopped fails, and does not start it.", []string{stops}, s.asking(s.execStopped)},
		{"Logs: as Info announces them", "With the capability, Logs gives what the machine's own process said, and ends; without it, Logs is Unimplemented.",
			[]string{stops}, s.asking(s.logs)},
		{starts, "Start of a stopped machine succeeds, and Find then says running.", []string{stops}, s.asking(s.startStopped)},
		{"Exec: a machine that was started again", "A command runs in a machine that was stopped and started.", []string{starts, exitCodes}, s.asking(s.execAgain)},
		{"Delete: the machine is gone", "Delete of a running machine succeeds, and Find then does not find it.", []string{makes}, s.asking(s.delete)},
	}
}

// refusal checks that a call failed with a status.
func refusal(what string, err error, want codes.Code) (expected, seen string, failure error) {
	expected = "the status " + want.String()
	switch {
	case err == nil:
		return broken(expected, "%s succeeded", what)
	case status.Code(err) != want:
		return broken(expected, "%v", err)
	}
	return expected, err.Error(), nil
}

func (s *suite) findNothing(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "success, and found = false"
	res, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.absent})
	if err == nil && res.GetFound() {
		return broken(expected, "found = true")
	}
	return expected, expected, r.Explain("Find", err)
}

func (s *suite) startNothing(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	_, err = r.Calls.Start(ctx, &pb.StartRequest{WorkspaceId: s.absent})
	return refusal("Start", err, codes.NotFound)
}

func (s *suite) errorDetail(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "one RuntimeError with the code NOT_FOUND and a message"
	_, err = r.Calls.Start(ctx, &pb.StartRequest{WorkspaceId: s.absent})
	var details []*pb.RuntimeError
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*pb.RuntimeError); ok {
			details = append(details, e)
		}
	}
	if len(details) != 1 {
		return broken(expected, "%d of them with %v", len(details), err)
	}
	seen = fmt.Sprintf("the code %s and the message %q", details[0].GetCode(), details[0].GetMessage())
	if details[0].GetCode() != pb.NotFound || details[0].GetMessage() == "" {
		return broken(expected, "%s", seen)
	}
	return expected, seen, nil
}

func (s *suite) deleteNothing(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	_, err = r.Calls.Delete(ctx, &pb.DeleteRequest{WorkspaceId: s.absent})
	return "success", "the same", r.Explain("Delete", err)
}

func (s *suite) execNothing(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Answer)
	defer cancel()
	_, err = r.Exec(ctx, &pb.ExecStart{WorkspaceId: s.absent, Argv: []string{"/bin/sh", "-c", "exit 0"}}, noStreams)
	return refusal("Exec", err, codes.NotFound)
}

func (s *suite) runNoImage(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "an error"
	// Nothing listens on this port, so the answer is quick and needs no network.
	_, err = r.Calls.RunImage(ctx, &pb.RunImageRequest{WorkspaceId: s.absent, Image: "127.0.0.1:1/parity/no-such-image:none"})
	if err == nil {
		return broken(expected, "success")
	}
	return expected, err.Error(), nil
}

// request is for the workspace of the checks. The entrypoint says the marker, and keeps a machine up that ends with its first process.
func (s *suite) request() *pb.RunImageRequest {
	return &pb.RunImageRequest{
		WorkspaceId: s.workspace, Image: s.Image, Environment: map[string]string{"PARITY_CONFORMANCE": "from RunImage"},
		Labels:     []string{"parity=conformance"},
		Entrypoint: "/bin/sh", Args: []string{"-c", "echo " + s.marker + "; trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"},
	}
}

func (s *suite) make(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "success, and a machine with an id"
	if _, err := r.Calls.RunImage(ctx, s.request()); err != nil {
		return expected, "", r.Explain("RunImage", err)
	}
	res, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err != nil {
		return expected, "", r.Explain("Find", err)
	}
	if !res.GetFound() || res.GetContainer().GetId() == "" {
		return broken(expected, "found = %v, and the id %q", res.GetFound(), res.GetContainer().GetId())
	}
	return expected, "the id " + res.GetContainer().GetId(), nil
}

// state checks the state of the workspace of the checks.
func (s *suite) state(ctx context.Context, r *runtimeclient.Runtime, want string) (expected, seen string, err error) {
	expected = "the status " + want
	res, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err != nil {
		return expected, "", r.Explain("Find", err)
	}
	if got := res.GetContainer().GetState().GetStatus(); !res.GetFound() || got != want {
		return broken(expected, "found = %v, and the status %q", res.GetFound(), got)
	}
	return expected, expected, nil
}

func (s *suite) running(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	return s.state(ctx, r, pb.StatusRunning)
}

func (s *suite) createdAt(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "a time of RFC 3339 that is not in the future"
	res, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err != nil {
		return expected, "", r.Explain("Find", err)
	}
	seen = res.GetContainer().GetCreatedAt()
	at, err := time.Parse(time.RFC3339Nano, seen)
	if err != nil || at.After(time.Now().Add(time.Minute)) { // a runtime may be on another machine, with another clock
		return broken(expected, "%q", seen)
	}
	return expected, seen, nil
}

func (s *suite) makeAgain(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	before, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err != nil {
		return "the machine", "", r.Explain("Find", err)
	}
	_, err = r.Calls.RunImage(ctx, s.request())
	if expected, seen, err = refusal("RunImage", err, codes.AlreadyExists); err != nil {
		return expected, seen, err
	}
	expected += fmt.Sprintf(", and the machine %s of %s running", before.GetContainer().GetId(), before.GetContainer().GetCreatedAt())
	after, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err != nil {
		return expected, "", r.Explain("Find", err)
	}
	was, is := before.GetContainer(), after.GetContainer()
	if !after.GetFound() || is.GetId() != was.GetId() || is.GetCreatedAt() != was.GetCreatedAt() || is.GetState().GetStatus() != pb.StatusRunning {
		return broken(expected, "found = %v, the machine %q of %q, the status %q", after.GetFound(), is.GetId(), is.GetCreatedAt(), is.GetState().GetStatus())
	}
	return expected, seen, nil
}

func (s *suite) startRunning(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	if _, err := r.Calls.Start(ctx, &pb.StartRequest{WorkspaceId: s.workspace}); err != nil {
		return "success", "", r.Explain("Start", err)
	}
	return s.state(ctx, r, pb.StatusRunning)
}

func (s *suite) stop(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	if _, err := r.Calls.Stop(ctx, &pb.StopRequest{WorkspaceId: s.workspace}); err != nil {
		return "success", "", r.Explain("Stop", err)
	}
	return s.state(ctx, r, pb.StatusStopped)
}

// stopAgain is another name of stop, for a machine in another state.
func (s *suite) stopAgain(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	return s.stop(ctx, r)
}

func (s *suite) execStopped(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "an error, and the status stopped"
	exit, err := r.Exec(ctx, &pb.ExecStart{WorkspaceId: s.workspace, Argv: []string{"/bin/sh", "-c", "exit 0"}}, noStreams)
	if err == nil {
		return broken(expected, "the command ran, and exited with %d", exit.GetExitCode())
	}
	refused := err
	if _, seen, err = s.state(ctx, r, pb.StatusStopped); err != nil {
		return expected, seen, err
	}
	return expected, fmt.Sprintf("%v, and %s", refused, seen), nil
}

func (s *suite) logs(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	announced := r.Info.GetCapabilities().GetLogs()
	ctx, cancel := context.WithTimeout(ctx, s.Answer)
	defer cancel()
	var said strings.Builder
	stream, err := r.Calls.Logs(ctx, &pb.LogsRequest{WorkspaceId: s.workspace})
	for err == nil {
		var chunk *pb.OutputChunk
		if chunk, err = stream.Recv(); err == nil && said.Len() < 1<<20 {
			said.Write(chunk.GetData())
		}
	}
	if !announced {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return refusal("Logs", err, codes.Unimplemented)
	}
	expected = fmt.Sprintf("the line %s, and the end", s.marker)
	if !errors.Is(err, io.EOF) {
		return broken(expected, "%.200q, and then %v", said.String(), err)
	}
	if !strings.Contains(said.String(), s.marker) {
		return broken(expected, "%.200q", said.String())
	}
	return expected, "the same", nil
}

func (s *suite) startStopped(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	return s.startRunning(ctx, r)
}

func (s *suite) execAgain(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	return s.exitCode(ctx, r, 3)
}

func (s *suite) delete(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "success, and found = false"
	if _, err := r.Calls.Delete(ctx, &pb.DeleteRequest{WorkspaceId: s.workspace}); err != nil {
		return expected, "", r.Explain("Delete", err)
	}
	res, err := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: s.workspace})
	if err == nil && res.GetFound() {
		return broken(expected, "found = true")
	}
	return expected, expected, r.Explain("Find", err)
}
