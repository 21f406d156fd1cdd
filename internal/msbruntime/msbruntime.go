// Package msbruntime is the reference external runtime: workspaces as MicroSandbox machines, behind Runtime Protocol v1. It is the driver
// that the reference CLI has built in, and differs from that in what the protocol and the environment ask for only.
package msbruntime

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
	pb "dagger/parity/internal/runtimeproto"
	"dagger/parity/internal/runtimeserver"
)

// Runtime is the runtime.
type Runtime struct {
	driver msbdriver.Driver

	// What is wrong with the environment: no machine can be made with wrong options, and nothing works without MicroSandbox.
	wrongOptions, noMSB error
}

var _ runtimeserver.Runtime = (*Runtime)(nil)

// New gives a runtime that is configured by this process's environment. What is wrong with that is said by the calls that need it: a
// workspace whose options are wrong can still be stopped and deleted.
func New() *Runtime {
	var r Runtime
	r.driver.Log = os.Stderr
	r.driver.Options, r.wrongOptions = msbdriver.ParseEnvironment(os.Environ())
	r.driver.MSB, r.noMSB = msbdriver.Locate()
	return &r
}

// Version is that of this program.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// Info implements runtimeserver.Runtime. The version of MicroSandbox is left out: asking it takes as long as a call.
func (r *Runtime) Info() *pb.InfoResponse {
	return &pb.InfoResponse{
		ApiMajor: pb.APIMajor, ApiMinor: pb.APIMinor,
		DriverName: "parity-runtime", DriverVersion: Version(), RuntimeName: "microsandbox",
		Capabilities: &pb.Capabilities{RecreateMode: pb.RecreateMode_RECREATE_MODE_DELETE},
	}
}

// Preflight implements runtimeserver.Runtime.
func (r *Runtime) Preflight(context.Context) error {
	if r.wrongOptions != nil {
		return pb.Errorf(pb.InvalidArgument, "%v", r.wrongOptions)
	}
	return r.ready()
}

// ready says whether there is a MicroSandbox.
func (r *Runtime) ready() error {
	if r.noMSB != nil {
		return pb.Errorf(pb.FailedPrecondition, "%v", r.noMSB)
	}
	return nil
}

// Architecture implements runtimeserver.Runtime: that of this machine is that of all.
func (r *Runtime) Architecture(context.Context, string) (string, error) { return runtime.GOARCH, nil }

// Find implements runtimeserver.Runtime.
func (r *Runtime) Find(ctx context.Context, workspace string) (driver.Machine, bool, error) {
	if err := r.ready(); err != nil {
		return driver.Machine{}, false, err
	}
	return r.driver.Find(ctx, workspace)
}

// Run implements runtimeserver.Runtime. The entrypoint is what keeps a container up; a machine stays up by itself, so it is not run.
func (r *Runtime) Run(ctx context.Context, request *pb.RunImageRequest) error {
	if err := r.Preflight(ctx); err != nil {
		return err
	}
	if err := supported(request); err != nil {
		return err
	}
	o := driver.RunOptions{
		Image: request.GetImage(), ImageBuiltLocally: request.GetImageBuiltLocally(), User: request.GetUser(),
		Environment: request.GetEnvironment(), Labels: map[string]string{},
	}
	for _, label := range request.GetLabels() {
		key, value, _ := strings.Cut(label, "=")
		o.Labels[key] = value
	}
	_, err := r.driver.Run(ctx, request.GetWorkspaceId(), o)
	return err
}

// supported refuses what would change what runs and cannot be had.
func supported(r *pb.RunImageRequest) error {
	var not []string
	for name, asked := range map[string]bool{
		"privileged":      r.GetPrivileged(),
		"init":            r.GetInit(),
		"cap_add":         len(r.GetCapAdd()) > 0,
		"security_opt":    len(r.GetSecurityOpt()) > 0,
		"workspace_mount": r.GetWorkspaceMount() != nil,
		"mounts":          len(r.GetMounts()) > 0,
		"userns":          r.GetUserns() != "",
		"uid_map":         len(r.GetUidMap()) > 0,
		"gid_map":         len(r.GetGidMap()) > 0,
		"platform":        !slices.Contains([]string{"", "linux/" + runtime.GOARCH}, r.GetPlatform()),
		"gpu":             r.GetHostRequirements().GetGpu().GetValue() == pb.GpuRequirementValue_GPU_REQUIRED,
		"dockerless":      r.GetDockerless(),
	} {
		if asked {
			not = append(not, name)
		}
	}
	if len(not) > 0 {
		slices.Sort(not)
		return pb.Errorf(pb.Unsupported, "this runtime cannot do what these ask for: %s", strings.Join(not, ", "))
	}
	return nil
}

// Start implements runtimeserver.Runtime.
func (r *Runtime) Start(ctx context.Context, workspace string) error {
	if err := r.ready(); err != nil {
		return err
	}
	return r.driver.Start(ctx, workspace)
}

// Stop implements runtimeserver.Runtime.
func (r *Runtime) Stop(ctx context.Context, workspace string) error {
	if err := r.ready(); err != nil {
		return err
	}
	return r.driver.Stop(ctx, workspace)
}

// Delete implements runtimeserver.Runtime.
func (r *Runtime) Delete(ctx context.Context, workspace string) error {
	if err := r.ready(); err != nil {
		return err
	}
	return r.driver.Delete(ctx, workspace)
}

// Exec implements runtimeserver.Runtime. It looks at the machine's state first: msb boots a stopped one for a command, and stops it again.
// Of a command that a signal ended, msb says the code 255 and not the signal.
func (r *Runtime) Exec(ctx context.Context, start *pb.ExecStart, s driver.Streams) (*pb.ExecExit, error) {
	m, found, err := r.Find(ctx, start.GetWorkspaceId())
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("%w: workspace %s", driver.ErrNotFound, start.GetWorkspaceId())
	case !m.Running:
		return nil, pb.Errorf(pb.FailedPrecondition, "the machine of workspace %s is not running: start it first", start.GetWorkspaceId())
	}
	o := msb.ExecOptions{User: start.GetUser(), Workdir: start.GetWorkdir(), Env: start.GetEnvironment()}
	code, err := r.driver.ExecAs(ctx, start.GetWorkspaceId(), o, start.GetArgv(), s)
	if err != nil {
		return nil, err
	}
	return &pb.ExecExit{ExitCode: int32(code)}, nil
}

// Logs implements runtimeserver.Runtime, which does not call it: there is no process of the machine's own whose words could be kept.
func (r *Runtime) Logs(context.Context, string, io.Writer) error {
	return pb.Errorf(pb.Unsupported, "this runtime keeps no logs")
}
