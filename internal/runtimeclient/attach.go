package runtimeclient

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "dagger/parity/internal/runtimeproto"
)

// Way is a connection that leads to a runtime which somebody else has started.
type Way interface {
	net.Conn
	// Ended says how the way ended, if it has, which it may wait a moment for: it is called when the connection broke.
	Ended() (how error, ended bool)
}

// Attach gives the runtime at the end of a way, and asks for its Info. The way is the runtime's then: it is closed with it, or when Attach
// fails.
func Attach(ctx context.Context, w Way) (*Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, StartDeadline)
	defer cancel()
	dialled := make(chan net.Conn, 1)
	dialled <- w
	conn, err := grpc.NewClient("passthrough:///way",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-dialled:
				return c, nil
			default: // it cannot be had again
				return nil, errors.New("the connection to the runtime broke")
			}
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(pb.FlowWindow), grpc.WithInitialConnWindowSize(pb.FlowWindow))
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r := &Runtime{Calls: pb.NewRuntimeDriverClient(conn), way: w, conn: conn}
	if r.Info, err = r.Calls.Info(ctx, &pb.InfoRequest{}); err != nil {
		err = r.Explain("Info", err)
	} else {
		err = CheckInfo(r.Info)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Dial gives a further connection to a runtime that was started here: what comes over it goes on elsewhere.
func (r *Runtime) Dial(ctx context.Context) (net.Conn, error) {
	address, err := r.client.Start() // it runs already: this gives where
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, address.Network(), address.String())
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime: %w", err)
	}
	return conn, nil
}

// Ended tells, once a connection to the runtime broke, how the runtime ended, if it did.
func (r *Runtime) Ended() (how error, ended bool) { return r.awaitCrash() }
