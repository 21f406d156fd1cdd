package reference_test

import (
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// sshd is an SSH server as machines have one: it runs commands with an environment of their own, closes their pipes when the connection
// is lost, and does no more to them.
type sshd struct {
	net.Listener
	env []string
}

func startSSHD(t *testing.T, env []string) *sshd {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	s := &sshd{Listener: l, env: env}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn, config)
		}
	}()
	t.Cleanup(func() { l.Close() })
	return s
}

func (s *sshd) serve(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if channel, requests, err := c.Accept(); err == nil {
			go s.session(channel, requests)
		}
	}
}

func (s *sshd) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	for r := range requests {
		var v struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &v) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		go func() {
			defer channel.Close()
			code := s.run(v.Command, channel)
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		}()
	}
}

// run runs a command and gives its exit code.
func (s *sshd) run(command string, channel ssh.Channel) int {
	c := exec.Command("/bin/sh", "-c", command)
	c.Env, c.Dir = s.env, "/"
	stdin, err := c.StdinPipe()
	if err != nil {
		return 255
	}
	stdout, _ := c.StdoutPipe()
	stderr, _ := c.StderrPipe()
	if c.Start() != nil {
		return 255
	}
	go func() { // also when the connection is lost
		_, _ = io.Copy(stdin, channel)
		stdin.Close()
	}()
	var output sync.WaitGroup
	copyTo := func(to io.Writer, from io.ReadCloser) {
		output.Go(func() {
			_, _ = io.Copy(to, from)
			from.Close() // who writes after that sees that nobody reads
		})
	}
	copyTo(channel, stdout)
	copyTo(channel.Stderr(), stderr)
	output.Wait()
	_ = c.Wait()
	return c.ProcessState.ExitCode()
}

// dial is a program: it runs the command in COMMAND over SSH, as ssh does, and gives the exit code.
func dial(address string) int {
	client, err := ssh.Dial("tcp", address, &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		os.Stderr.WriteString("dial: " + err.Error() + "\n")
		return 255
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return 255
	}
	session.Stdout, session.Stderr = os.Stdout, os.Stderr
	in, err := session.StdinPipe() // and not Stdin: a command does not wait for the end of its input
	if err != nil {
		return 255
	}
	go func() {
		_, _ = io.Copy(in, os.Stdin)
		in.Close()
	}()
	err = session.Run(os.Getenv("COMMAND"))
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitStatus()
	}
	os.Stderr.WriteString("dial: " + err.Error() + "\n")
	return 255
}
