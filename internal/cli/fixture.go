package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/registry"
)

// fixtureCommand groups the fixtures that can run elsewhere, such as in a container.
func fixtureCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fixture",
		Short: "Serve one of the tests' fixtures on its own, such as in a container",
		Long: `Serve one of the tests' fixtures on its own, such as in a container, until Ctrl-C or SIGTERM. What it was asked is at its URL:
GET /parity/requests gives that as JSON, and POST /parity/clear forgets it. Neither counts as a request.`,
		Args: usage(knownCommand),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(registryCommand(), artifactsCommand())
	return c
}

func registryCommand() *cobra.Command {
	var o registry.Options
	var listen, caOut, user, passwordFile string
	c := &cobra.Command{
		Use:   "registry",
		Short: "Serve an empty OCI registry that counts what is asked of it",
		Long: `Serve an empty OCI registry that counts what is asked of it, until Ctrl-C or SIGTERM. It prints the address at which it is reached, once
it serves. What was pushed to it goes with it.

Exit codes: 0 it was ended; 2 bad usage; 3 it cannot serve, or what it kept could not be removed.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := refuseEmpty(c, "listen", "dir", "ca-out", "user", "password-file"); err != nil {
				return err
			}
			if o.Listen, err = parseListen("listen", listen); err != nil {
				return err
			}
			if o.TLS != (caOut != "") {
				return usageErrorf("--tls and --ca-out go together: without the CA's certificate no client trusts the registry")
			}
			if o.Login, err = readLogin(user, passwordFile); err != nil {
				return err
			}
			ctx, stop := ended(c.Context())
			defer stop()
			r, err := registry.Start(o)
			if err != nil {
				return err
			}
			if caOut != "" {
				if err := renameio.WriteFile(caOut, r.CA(), 0o644); err != nil {
					return errors.Join(fmt.Errorf("--ca-out: %w", err), r.Close())
				}
			}
			return serve(ctx, stop, r, r.Host()+"\n")
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:0", "address and port to listen on, such as 0.0.0.0:5000; port 0: a free one")
	f.StringVar(&o.Dir, "dir", "", "folder for the blobs, which is empty or not there (default one among the temporary files)")
	f.BoolVar(&o.TLS, "tls", false, "serve TLS, with a certificate for the address and localhost, of a CA that is made for it")
	f.StringVar(&caOut, "ca-out", "", "with --tls: file to write the CA's certificate to, in PEM")
	f.StringVar(&user, "user", "", "user that clients must log in as (default no login)")
	f.StringVar(&passwordFile, "password-file", "", "with --user: file with the password; a line feed at its end is none of it")
	return c
}

func artifactsCommand() *cobra.Command {
	var agent, runtime, agentListen, runtimeListen, advertise string
	c := &cobra.Command{
		Use:   "artifacts --agent FILE --runtime FILE",
		Short: "Serve an agent's executable and a runtime, each on a port of its own, and count what is asked of them",
		Long: `Serve an agent's executable and a runtime under the names of their files, each on a port of its own, and count what is asked of them,
until Ctrl-C or SIGTERM. It prints the URL of each, once it serves them. POST /parity/offline has the server that it is sent to answer
404 to everything, and POST /parity/online ends that.

Exit codes: 0 it was ended; 2 bad usage; 3 it cannot serve.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if agent == "" || runtime == "" {
				return usageErrorf("--agent and --runtime: both are needed; see %s --help", c.CommandPath())
			}
			if err := refuseEmpty(c, "agent-listen", "runtime-listen", "advertise"); err != nil {
				return err
			}
			host, err := parseAdvertise(advertise)
			if err != nil {
				return err
			}
			agentFile, err := readFile("agent", agent, agentListen)
			if err != nil {
				return err
			}
			runtimeFile, err := readFile("runtime", runtime, runtimeListen)
			if err != nil {
				return err
			}
			ctx, stop := ended(c.Context())
			defer stop()
			p, err := artifacts.StartPair(agentFile, runtimeFile)
			if err != nil {
				return err
			}
			return serve(ctx, stop, p, fmt.Sprintf("agent   %s\nruntime %s\n", p.Agent.URLAt(host), p.Runtime.URLAt(host)))
		},
	}
	f := c.Flags()
	f.StringVar(&agent, "agent", "", "the agent's executable")
	f.StringVar(&runtime, "runtime", "", "the runtime")
	f.StringVar(&agentListen, "agent-listen", "127.0.0.1:0", "address and port for the agent, such as 0.0.0.0:8001; port 0: a free one")
	f.StringVar(&runtimeListen, "runtime-listen", "127.0.0.1:0", "address and port for the runtime")
	f.StringVar(&advertise, "advertise", "", "address at which others reach this host, for a wildcard such as 0.0.0.0 (default what its routes say)")
	return c
}

// readFile reads what --flag and --flag-listen say.
func readFile(flag, path, listen string) (f artifacts.File, err error) {
	if f.Listen, err = parseListen(flag+"-listen", listen); err != nil {
		return f, err
	}
	if f.Content, err = os.ReadFile(path); err != nil {
		return f, usageErrorf("--%s: %w", flag, err)
	}
	f.Name = filepath.Base(path)
	return f, nil
}

func parseAdvertise(value string) (netip.Addr, error) {
	if value == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(value)
	if err != nil || addr.IsUnspecified() {
		return addr, usageErrorf("--advertise %q: expected an IP address that is no wildcard, such as 192.0.2.1", value)
	}
	return addr, nil
}

// parseListen reads an address to listen on. It must be literal: a name can have many.
func parseListen(flag, value string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(value)
	if err != nil {
		return addr, usageErrorf("--%s %q: expected an IP address and a port, such as 127.0.0.1:5000, 0.0.0.0:5000 or [::]:5000", flag, value)
	}
	return addr, nil
}

func readLogin(user, passwordFile string) (*registry.Login, error) {
	if (user == "") != (passwordFile == "") {
		return nil, usageErrorf("--user and --password-file go together")
	}
	if user == "" {
		return nil, nil
	}
	password, err := os.ReadFile(passwordFile)
	if err != nil {
		return nil, usageErrorf("--password-file: %w", err)
	}
	login := &registry.Login{User: user, Password: string(bytes.TrimSuffix(password, []byte("\n")))}
	if err := login.Check(); err != nil {
		return nil, usageErrorf("--user and --password-file: %w", err)
	}
	return login, nil
}

// ended gives a context that ends with Ctrl-C, SIGTERM, or SIGHUP unless that is ignored. After stop, these end the program at once.
func ended(ctx context.Context) (_ context.Context, stop func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signal.NotifyContext(ctx, signals...)
}

// fixture is a server that runs until it is closed.
type fixture interface {
	Wait(context.Context) error
	Close() error
}

// serve prints where a fixture is reached, waits for the end of ctx, and closes it.
func serve(ctx context.Context, stop func(), f fixture, where string) error {
	_, err := os.Stdout.WriteString(where)
	if err == nil {
		err = f.Wait(ctx)
	}
	stop()
	return errors.Join(err, f.Close())
}
