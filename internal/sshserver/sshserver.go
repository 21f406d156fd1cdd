// Package sshserver serves one SSH connection over any byte stream: the standard input and output of a process, or a
// virtio-serial port. It runs commands, and nothing else: no terminals, no sub-systems, no forwarding.
//
// There is no client authentication. Whoever holds the other end of the byte stream was given it by whoever started this
// process, and could have run the commands without SSH; the byte stream itself is the trust. The host key is made at the start
// and proves nothing: SSH is here for its channels, not for its secrecy.
//
// It stands on x/crypto/ssh and not on gliderlabs/ssh, whose handlers are not told that the client closed their session (their
// context is the connection's), whose signal delivery deadlocks with Exit when a handler stops reading signals, and whose
// HandleConn returns without a way to wait for the handlers that it started.
package sshserver

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Options says how commands run.
type Options struct {
	Shell string   // runs each command with -c, and answers shell requests; empty means /bin/sh
	Dir   string   // working folder of commands; empty means this process's own
	Env   []string // environment of commands, KEY=VALUE; nil means this process's own. What a client sets comes after it.

	// Rewrite gives what runs in place of a command; nil leaves commands as they are. It may be called from many goroutines.
	Rewrite func(command string) string

	// Global answers a request of the connection's own, which belongs to no session. The answer is the
	// payload of the reply; false refuses the request. nil refuses every request.
	Global func(name string) (answer []byte, ok bool)
}

// Serve serves one SSH connection over rwc and closes it. It returns nil once the client has hung up, the context's error when
// ctx is done, and otherwise why the SSH handshake failed. When it returns, no process of the connection's is left: those still
// running were ended, as whole process groups, SIGTERM first and SIGKILL proc.Grace later.
//
// Many sessions run at once, and one whose client does not read holds up no other. A session ends with its command: what the
// command left running in its process group is ended too (a daemon must leave the group, as setsid does), then everything
// that the group wrote is delivered, then the exit code or the signal.
//
// Commands inherit the signals that this process ignores. A process started in the background by a shell ignores SIGINT and
// SIGQUIT, unless it asks for them with signal.Notify: do so where a client's INT must end a command. The process that serves
// must not reap children that are not its own, as an init's wait loop does: exit codes would be lost.
func Serve(ctx context.Context, rwc io.ReadWriteCloser, o Options) error {
	if o.Shell == "" {
		o.Shell = "/bin/sh"
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make the SSH host key: %w", err)
	}
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		return fmt.Errorf("make the SSH host key: %w", err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: "SSH-2.0-parity"}
	config.AddHostKey(signer)

	conn := Conn(rwc)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("SSH handshake with the client: %w", err)
	}
	go answer(requests, o.Global)
	var sessions sync.WaitGroup
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "only sessions are served")
			continue
		}
		sessions.Go(func() { session(c, o) })
	}
	sessions.Wait()
	return ctx.Err()
}

// answer answers the connection's own requests.
func answer(requests <-chan *ssh.Request, global func(string) ([]byte, bool)) {
	for r := range requests {
		var payload []byte
		ok := false
		if global != nil {
			payload, ok = global(r.Type)
		}
		if r.WantReply {
			_ = r.Reply(ok, payload) // nobody waits for it any more where this fails
		}
	}
}

// session answers the requests of one session channel until the client or the command ends it. It never blocks on the command:
// the requests of all sessions come in over one queue.
func session(c ssh.NewChannel, o Options) {
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	env := append([]string(nil), o.Env...)
	closed := make(chan struct{})
	var running *command
	var done sync.WaitGroup
	for r := range requests {
		ok := false
		switch r.Type {
		case "env":
			var v struct{ Name, Value string }
			if ok = running == nil && ssh.Unmarshal(r.Payload, &v) == nil; ok {
				env = append(env, v.Name+"="+v.Value)
			}
		case "exec", "shell":
			argv := []string{o.Shell}
			if ok = running == nil; ok && r.Type == "exec" {
				var v struct{ Command string }
				ok = ssh.Unmarshal(r.Payload, &v) == nil
				if o.Rewrite != nil {
					v.Command = o.Rewrite(v.Command)
				}
				argv = append(argv, "-c", v.Command)
			}
			if ok {
				running = start(argv, env, o.Dir)
				// The client must see the answer before the output and the exit code.
				_ = r.Reply(true, nil)
				done.Go(func() { running.serve(channel, closed) })
				continue
			}
		case "signal":
			var v struct{ Name string }
			ok = running != nil && ssh.Unmarshal(r.Payload, &v) == nil && running.signal(v.Name)
		}
		_ = r.Reply(ok, nil)
	}
	close(closed)
	done.Wait()
}
