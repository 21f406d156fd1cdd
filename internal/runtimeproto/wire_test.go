package runtimeproto_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"dagger/parity/internal/runtimeproto"
)

// wire is the protocol's wire format, written down apart from the .proto: changing that one and generating again must not go unseen.
// A field that is not named here is one that the protocol does not have.
const wire = `
InfoResponse: api_major 1, api_minor 2, driver_name 3, driver_version 4, runtime_name 5, runtime_version 6, capabilities 7
Capabilities: mount_types 1, requires_mount_streaming 2, requires_workspace_chown 3, recreate_mode 4, provisioning_preflight 5, reprovision 6, logs 7
MountType: UNSPECIFIED 0, BIND 1, VOLUME 2, TMPFS 3
RecreateMode: UNSPECIFIED 0, DELETE 1, STOP 2
PreflightRequest: disable_auto_start 1
FindRequest: workspace_id 1
FindResponse: found 1, container 2
ContainerDetails: id 1, created_at 2, state 3, config 4, mounts 5
ContainerState: status 1, started_at 2, exit_code 3, error 4
ContainerConfig: labels 1, working_dir 2, user 3
RunImageRequest: workspace_id 1, image 2, image_built_locally 3, user 4, entrypoint 5, args 6, environment 7, labels 8, cap_add 9, security_opt 10, privileged 11, init 12, workspace_mount 13, mounts 14, userns 15, uid_map 16, gid_map 17, platform 18, host_requirements 19, remote_user 20, dockerless 21
Mount: type 1, source 2, target 3, read_only 4, options 5
HostRequirements: cpus 1, memory_bytes 2, storage_bytes 3, gpu 4
ExecClientMessage: start 1, stdin 2, close_stdin 3
ExecStart: workspace_id 1, argv 2, user 3, workdir 4, environment 5, tty 6
ExecServerMessage: stdout 1, stderr 2, exit 3
ExecExit: exit_code 1, signal 2
RuntimeError: code 1, message 2, runtime_message 3, retryable 4, details 5`

func TestFieldNumbersAreTheProtocols(t *testing.T) {
	file := runtimeproto.File_runtime_proto
	if file.Package() != "devsy.runtime.v1" {
		t.Errorf("the package is %s", file.Package())
	}
	for line := range strings.Lines(strings.TrimSpace(wire)) {
		name, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var have []string
		if m := file.Messages().ByName(protoreflect.Name(name)); m != nil {
			for i := range m.Fields().Len() {
				f := m.Fields().Get(i)
				have = append(have, fmt.Sprintf("%s %d", f.Name(), f.Number()))
			}
		} else if e := file.Enums().ByName(protoreflect.Name(name)); e != nil {
			for i := range e.Values().Len() {
				v := e.Values().Get(i)
				short := string(v.Name())[strings.LastIndex(string(v.Name()), "_")+1:]
				have = append(have, fmt.Sprintf("%s %d", short, v.Number()))
			}
		}
		if got := strings.Join(have, ", "); got != want {
			t.Errorf("%s has %s; the protocol has %s", name, got, want)
		}
	}
}

// The calls by name, and which of them stream.
func TestCallsAreTheProtocols(t *testing.T) {
	const want = "Info Preflight ProvisioningPreflight TargetArchitecture Find RunImage Start Stop Delete <Exec> Logs>"
	var have []string
	service := runtimeproto.File_runtime_proto.Services().ByName("RuntimeDriver")
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		name := string(m.Name())
		if m.IsStreamingClient() {
			name = "<" + name
		}
		if m.IsStreamingServer() {
			name += ">"
		}
		have = append(have, name)
	}
	if got := strings.Join(have, " "); got != want {
		t.Errorf("the service has %s; the protocol has %s", got, want)
	}
}
