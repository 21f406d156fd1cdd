// Package engine finds the Docker Engine of this machine's user.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moby/moby/client"
)

// ErrAbsent is what the error of Open is when no engine was named and there is none: that is no fault by itself.
var ErrAbsent = errors.New("there is no Docker Engine")

// patience is how long an engine may take to answer whether it is there.
const patience = 30 * time.Second

// Open gives a client of the Docker Engine at DOCKER_HOST, or else of the one at the usual socket. It has answered, and the version of the API
// is one that both know. The caller closes it.
func Open(ctx context.Context) (*client.Client, error) {
	named := os.Getenv(client.EnvOverrideHost) != ""
	c, err := client.New(client.FromEnv)
	if err != nil {
		return nil, fmt.Errorf("the Docker Engine of the environment: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = c.Ping(bounded, client.PingOptions{NegotiateAPIVersion: true})
	switch {
	case err == nil:
		return c, nil
	case !named && client.IsErrConnectionFailed(err):
		err = fmt.Errorf("%w at %s; name one in %s: %w", ErrAbsent, c.DaemonHost(), client.EnvOverrideHost, err)
	case named:
		err = fmt.Errorf("the Docker Engine that %s names does not answer; start it, or unset the variable: %w", client.EnvOverrideHost, err)
	default:
		err = fmt.Errorf("the Docker Engine at %s: %w", c.DaemonHost(), err)
	}
	return nil, errors.Join(err, c.Close())
}
