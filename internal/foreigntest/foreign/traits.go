package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/ssh"

	"dagger/parity/internal/sshserver"
)

// The traits, each of which goes against something that Parity once took for granted.
const (
	traitSlow    = "slow"    // each command takes a while
	traitResolve = "resolve" // it reads an image's config from its registry before it makes a machine
	traitExec    = "exec"    // a provider.yaml has an exec.command, on this machine too
	traitLogin   = "login"   // SSH is for the user that open reported only
	traitExit    = "exit"    // enter exits with 1 if the command in the guest failed, and says its code
	traitState   = "state"   // on a remote machine its state and its downloads are elsewhere
	traitAgain   = "again"   // it runs the provider's runtime once more when a space is dropped that did not open
)

// withoutMark is before the traits that the CLI lacks, in the last line of its file.
const withoutMark = "\nforeign-without:"

// lacks returns the traits that the CLI lacks.
var lacks = sync.OnceValue(func() []string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	end := make([]byte, 256)
	if _, err := f.Seek(-int64(len(end)), io.SeekEnd); err != nil {
		panic(err)
	}
	if _, err := io.ReadFull(f, end); err != nil {
		panic(err)
	}
	_, list, _ := bytes.Cut(end, []byte(withoutMark))
	return strings.Split(strings.TrimSpace(string(list)), ",")
})

// resolve reads the config of the image that a folder asks for.
func resolve(dir, spec string) error {
	if spec == "" {
		spec = ".devcontainer/devcontainer.json"
	}
	text, err := os.ReadFile(filepath.Join(dir, spec))
	if err == nil {
		text, err = hujson.Standardize(text)
	}
	var config struct{ Image string }
	if err == nil {
		err = yaml.Unmarshal(text, &config)
	}
	if err != nil || config.Image == "" { // it is built here
		return err
	}
	ref, err := name.ParseReference(config.Image)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref)
	if err != nil {
		return err
	}
	_, err = image.ConfigFile()
	return err
}

// wantsExec refuses a manifest without exec.command.
func wantsExec(source string) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	var m struct{ Exec struct{ Command string } }
	if err := yaml.Unmarshal(text, &m); err != nil {
		return err
	}
	if m.Exec.Command == "" {
		return errors.New("the source's manifest has no exec.command: there is no way to its machine")
	}
	return nil
}

// login returns whom to log in as for a user of the guest.
func login(user string) string {
	if has(traitLogin) {
		return user + ".space"
	}
	return user
}

// gate serves SSH on standard input and output, for the login of a space only, and carries it to
// the guest's own server.
func gate(space string) error {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{NoClientAuth: true, NoClientAuthCallback: func(c ssh.ConnMetadata) (*ssh.Permissions, error) {
		if !strings.HasSuffix(c.User(), login("")) {
			return nil, fmt.Errorf("%q is no login of the space", c.User())
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	conn, channels, requests, err := ssh.NewServerConn(sshserver.Conn(streams{os.Stdin, os.Stdout}), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	theirIn, in, err := os.Pipe()
	if err != nil {
		return err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ours{in: theirIn, out: theirOut, err: os.Stderr}.run("workspace", "ssh", space, "--stdio")
		theirOut.Close()
		theirIn.Close()
	}()
	guest, guestChannels, guestRequests, err := ssh.NewClientConn(sshserver.Conn(streams{out, in}), space,
		sshserver.ClientConfig(func(string, net.Addr, ssh.PublicKey) error { return nil }))
	if err != nil {
		<-ended
		return fmt.Errorf("the connection broke: %w", err)
	}
	go ssh.DiscardRequests(guestRequests)
	go func() {
		for c := range guestChannels {
			_ = c.Reject(ssh.Prohibited, "")
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	context.AfterFunc(ctx, func() { guest.Close() })
	go func() {
		<-ended
		conn.Close()
	}()
	var carried sync.WaitGroup
	for c := range channels {
		carried.Go(func() { carry(c, guest) })
	}
	cancel()
	carried.Wait()
	<-ended
	return nil
}

// carry carries a channel to the guest.
func carry(c ssh.NewChannel, guest ssh.Conn) {
	there, answers, err := guest.OpenChannel(c.ChannelType(), c.ExtraData())
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	here, asks, err := c.Accept()
	if err != nil {
		there.Close()
		return
	}
	begun := make(chan struct{}) // the client sees the answer to its command before what comes of it
	go func() {
		once := sync.OnceFunc(func() { close(begun) })
		defer once()
		for r := range asks {
			ok, _ := there.SendRequest(r.Type, r.WantReply, r.Payload)
			if r.WantReply {
				_ = r.Reply(ok, nil)
			}
			if r.Type == "exec" {
				once()
			}
		}
		there.Close() // the client has closed the channel
	}()
	go func() {
		_, _ = io.Copy(there, here)
		_ = there.CloseWrite()
	}()
	<-begun
	var outputs sync.WaitGroup
	outputs.Go(func() { _, _ = io.Copy(here, there) })
	outputs.Go(func() { _, _ = io.Copy(here.Stderr(), there.Stderr()) })
	for r := range answers { // the exit code comes before the end
		if r.Type == "exit-status" || r.Type == "exit-signal" {
			outputs.Wait()
		}
		ok, _ := here.SendRequest(r.Type, r.WantReply, r.Payload)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	outputs.Wait()
	here.Close()
}

// streams are two ends of pipes as one stream.
type streams struct {
	io.ReadCloser
	out io.WriteCloser
}

func (s streams) Write(b []byte) (int, error) { return s.out.Write(b) }
func (s streams) Close() error                { return errors.Join(s.ReadCloser.Close(), s.out.Close()) }
