// Package runtimeproto is Devsy's Runtime Protocol v1: its messages, how a host and a runtime recognise each other, its limits, and what
// its errors mean. Package runtimeserver serves it, package runtimeclient asks; docs/runtime-protocol.md says what each call means.
package runtimeproto

import (
	"context"
	"errors"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// The version of the protocol that go-plugin negotiates, and that of the calls' meaning, which Info tells. A runtime of a higher minor
// version is fine.
const (
	ProtocolVersion = 1
	APIMajor        = 1
	APIMinor        = 1
)

// PluginName is the name under which the service is dispensed.
const PluginName = "devsy-runtime"

// MaxFrame is the most bytes that a frame of Exec or Logs may carry.
const MaxFrame = 32 << 10

// FlowWindow is how many bytes of a stream may be on their way: with gRPC's own 64 KiB, each frame but one waits for the other side.
const FlowWindow = 1 << 20

// The two states of a machine.
const (
	StatusRunning = "running"
	StatusStopped = "stopped"
)

// Handshake is how the two sides recognise each other. It keeps a runtime from being run by hand, and protects from nobody.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   "DEVSY_RUNTIME_PLUGIN",
		MagicCookieValue: "devsy-runtime-v1",
	}
}

// Plugins is what go-plugin serves or dispenses: the service, which only the serving side gives.
func Plugins(service RuntimeDriverServer) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{ProtocolVersion: {PluginName: &glue{service: service}}}
}

type glue struct {
	plugin.NetRPCUnsupportedPlugin
	service RuntimeDriverServer
}

var _ plugin.GRPCPlugin = (*glue)(nil)

// GRPCServer implements plugin.GRPCPlugin.
func (g *glue) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	if g.service == nil {
		return errors.New("there is no runtime to serve")
	}
	RegisterRuntimeDriverServer(s, g.service)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin.
func (*glue) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewRuntimeDriverClient(conn), nil
}
