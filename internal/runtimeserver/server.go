// Package runtimeserver serves Runtime Protocol v1. It sees to what the protocol says of every runtime (arguments, the order and size of
// frames, errors), so that what it serves need not.
package runtimeserver

import (
	"context"
	"io"
	"strings"
	"time"

	"dagger/parity/internal/reference/driver"
	pb "dagger/parity/internal/runtimeproto"
)

// Runtime is what is served. Each call has the meaning of driver.Driver's of the same name; errors may be driver's or *runtimeproto.Error.
// The identities of workspaces and what ExecStart must have were looked at before.
type Runtime interface {
	// Info is asked for first, so it must need nothing of what the runtime is configured with.
	Info() *pb.InfoResponse
	// Preflight says whether a machine could be made, as far as that can be told without making one.
	Preflight(ctx context.Context) error
	// Architecture is that of a workspace's machine, or of those that would be made.
	Architecture(ctx context.Context, workspace string) (string, error)

	Find(ctx context.Context, workspace string) (m driver.Machine, found bool, err error)
	Run(ctx context.Context, r *pb.RunImageRequest) error
	Start(ctx context.Context, workspace string) error
	Stop(ctx context.Context, workspace string) error
	Delete(ctx context.Context, workspace string) error

	// Exec runs a command in a machine that is there and runs; it looks itself. The streams are *os.File: they are the command's own.
	// When it returns, nothing of the command's is left to write to them.
	Exec(ctx context.Context, start *pb.ExecStart, s driver.Streams) (*pb.ExecExit, error)
	// Logs writes what the machine's own process has said. It is called when Info announces logs.
	Logs(ctx context.Context, workspace string, to io.Writer) error
}

// service is a Runtime as a gRPC service.
type service struct {
	pb.UnimplementedRuntimeDriverServer
	runtime Runtime
}

// Service gives a runtime as a gRPC service.
func Service(r Runtime) pb.RuntimeDriverServer { return service{runtime: r} }

func (s service) Info(context.Context, *pb.InfoRequest) (*pb.InfoResponse, error) {
	return s.runtime.Info(), nil
}

func (s service) Preflight(ctx context.Context, _ *pb.PreflightRequest) (*pb.PreflightResponse, error) {
	return answer(&pb.PreflightResponse{}, s.runtime.Preflight(ctx))
}

// ProvisioningPreflight has nothing to look at that Preflight has not.
func (s service) ProvisioningPreflight(ctx context.Context, _ *pb.ProvisioningPreflightRequest) (*pb.ProvisioningPreflightResponse, error) {
	return answer(&pb.ProvisioningPreflightResponse{}, s.runtime.Preflight(ctx))
}

func (s service) TargetArchitecture(ctx context.Context, r *pb.TargetArchitectureRequest) (*pb.TargetArchitectureResponse, error) {
	architecture, err := s.runtime.Architecture(ctx, r.GetWorkspaceId())
	return answer(&pb.TargetArchitectureResponse{Architecture: architecture}, err)
}

func (s service) Find(ctx context.Context, r *pb.FindRequest) (*pb.FindResponse, error) {
	if err := named(r); err != nil {
		return nil, err
	}
	m, found, err := s.runtime.Find(ctx, r.GetWorkspaceId())
	if err != nil || !found {
		return answer(&pb.FindResponse{}, err)
	}
	status := pb.StatusStopped
	if m.Running {
		status = pb.StatusRunning
	}
	return &pb.FindResponse{Found: true, Container: &pb.ContainerDetails{
		Id: m.ID, CreatedAt: m.CreatedAt.UTC().Format(time.RFC3339Nano), State: &pb.ContainerState{Status: status},
		Config: &pb.ContainerConfig{User: m.User},
	}}, nil
}

func (s service) RunImage(ctx context.Context, r *pb.RunImageRequest) (*pb.RunImageResponse, error) {
	if err := named(r); err != nil {
		return nil, err
	}
	if r.GetImage() == "" {
		return nil, pb.ToStatus(pb.Errorf(pb.InvalidArgument, "image: expected a reference, seen none"))
	}
	for _, label := range r.GetLabels() {
		if key, _, ok := strings.Cut(label, "="); !ok || key == "" {
			return nil, pb.ToStatus(pb.Errorf(pb.InvalidArgument, "label: expected KEY=VALUE, seen %q", label))
		}
	}
	return answer(&pb.RunImageResponse{}, s.runtime.Run(ctx, r))
}

func (s service) Start(ctx context.Context, r *pb.StartRequest) (*pb.StartResponse, error) {
	return change(ctx, r, &pb.StartResponse{}, s.runtime.Start)
}

func (s service) Stop(ctx context.Context, r *pb.StopRequest) (*pb.StopResponse, error) {
	return change(ctx, r, &pb.StopResponse{}, s.runtime.Stop)
}

func (s service) Delete(ctx context.Context, r *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	return change(ctx, r, &pb.DeleteResponse{}, s.runtime.Delete)
}

func (s service) Logs(r *pb.LogsRequest, stream pb.RuntimeDriver_LogsServer) error {
	if err := named(r); err != nil {
		return err
	}
	if !s.runtime.Info().GetCapabilities().GetLogs() {
		return pb.ToStatus(pb.Errorf(pb.Unsupported, "this runtime keeps no logs"))
	}
	return pb.ToStatus(s.runtime.Logs(stream.Context(), r.GetWorkspaceId(), frames(stream.Send)))
}

// ofWorkspace is a request about a workspace.
type ofWorkspace interface{ GetWorkspaceId() string }

func named(r ofWorkspace) error {
	if r.GetWorkspaceId() == "" {
		return pb.ToStatus(pb.Errorf(pb.InvalidArgument, "workspace_id: expected one, seen none"))
	}
	return nil
}

func change[T any](ctx context.Context, r ofWorkspace, ok T, do func(context.Context, string) error) (T, error) {
	var none T
	if err := named(r); err != nil {
		return none, err
	}
	if err := do(ctx, r.GetWorkspaceId()); err != nil {
		return none, pb.ToStatus(err)
	}
	return ok, nil
}

// answer gives the response of a call that succeeded, or its error as it travels.
func answer[T any](response *T, err error) (*T, error) {
	if err != nil {
		return nil, pb.ToStatus(err)
	}
	return response, nil
}

// frames is a writer that sends what it is given, in frames that are not too large.
type frames func(*pb.OutputChunk) error

func (send frames) Write(b []byte) (n int, err error) {
	for n < len(b) {
		chunk := b[n:min(n+pb.MaxFrame, len(b))]
		if err := send(&pb.OutputChunk{Data: chunk}); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}
