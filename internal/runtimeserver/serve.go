package runtimeserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"dagger/parity/internal/proc"
	pb "dagger/parity/internal/runtimeproto"
)

// Serve serves a runtime to the host that started this process, until the host ends it. It returns an error, at once, when there is no
// host: the program was started by hand.
//
// It takes over standard output, on which the handshake is. What is written to standard error reaches the host. When the host dies
// without a word, or a signal asks this process to end, the calls under way are cancelled, and this process exits once they have returned.
func Serve(r Runtime) error { return ServeService(Service(r)) }

// ServeService is Serve of a service as it is.
func ServeService(s pb.RuntimeDriverServer) error {
	handshake := pb.Handshake()
	if os.Getenv(handshake.MagicCookieKey) != handshake.MagicCookieValue {
		return fmt.Errorf("a workspace CLI starts this program, and says so in %s: it is not for running by hand", handshake.MagicCookieKey)
	}
	host, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return fmt.Errorf("watch the process that started this one: %w", err)
	}
	var calls calls
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP)
	died := make(chan struct{})
	go func() {
		awaitExit(host)
		close(died)
	}()
	go func() {
		select {
		case <-died:
		case <-signals:
		}
		calls.cancel()
		os.Exit(1)
	}()
	stderr := os.Stderr // the library puts another in its place
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: pb.Plugins(s),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return plugin.DefaultGRPCServer(append(o, grpc.InitialWindowSize(pb.FlowWindow), grpc.InitialConnWindowSize(pb.FlowWindow),
				grpc.ChainUnaryInterceptor(calls.unary), grpc.ChainStreamInterceptor(calls.stream)))
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: stderr}),
	})
	calls.cancel() // the library does not wait for calls that are under way
	return nil
}

// awaitExit returns when the process of a pidfd has exited.
func awaitExit(pidfd int) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// calls are the calls under way.
type calls struct {
	mu      sync.Mutex
	next    int
	cancels map[int]context.CancelFunc
	running sync.WaitGroup
}

// begin makes a call one of those under way, until done is called.
func (c *calls) begin(parent context.Context) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(parent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancels == nil {
		c.cancels = map[int]context.CancelFunc{}
	}
	c.next++
	id := c.next
	c.cancels[id] = cancel
	c.running.Add(1)
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancels, id)
		c.running.Done()
	}
}

// cancel cancels the calls, and waits until they have returned, but no longer than ending a child process may take.
func (c *calls) cancel() {
	c.mu.Lock()
	for _, cancel := range c.cancels {
		cancel()
	}
	c.mu.Unlock()
	returned := make(chan struct{})
	go func() {
		c.running.Wait()
		close(returned)
	}()
	select {
	case <-returned:
	case <-time.After(proc.Grace + time.Second):
	}
}

func (c *calls) unary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, done := c.begin(ctx)
	defer done()
	return handle(ctx, r)
}

func (c *calls) stream(service any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, done := c.begin(s.Context())
	defer done()
	return handle(service, cancellable{s, ctx})
}

// cancellable is a stream with a context of its own.
type cancellable struct {
	grpc.ServerStream
	ctx context.Context
}

func (c cancellable) Context() context.Context { return c.ctx }
