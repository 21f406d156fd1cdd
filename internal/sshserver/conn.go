package sshserver

import (
	"errors"
	"io"
	"net"
	"time"
)

// Conn makes a net.Conn of a byte stream, for either end of an SSH connection: x/crypto/ssh asks for one, and uses no more of
// it than Read, Write and Close. Close returns at once, closes rwc, and ends every Read and Write under way, even where closing
// rwc does not (a device file, an inherited standard input); such a call on rwc itself is then left behind.
// Deadlines are not supported: setting one is an error.
func Conn(rwc io.ReadWriteCloser) net.Conn {
	c := &conn{rwc: rwc}
	var in *io.PipeWriter
	var out *io.PipeReader
	c.in, in = io.Pipe()
	out, c.out = io.Pipe()
	go func() {
		_, err := io.Copy(in, rwc)
		in.CloseWithError(err) // nil becomes io.EOF
	}()
	go func() {
		_, err := io.Copy(rwc, out)
		out.CloseWithError(err)
	}()
	return c
}

type conn struct {
	rwc io.Closer
	in  *io.PipeReader
	out *io.PipeWriter
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.Write(b) }

func (c *conn) Close() error {
	c.in.CloseWithError(net.ErrClosed)
	c.out.CloseWithError(net.ErrClosed)
	return c.rwc.Close()
}

func (c *conn) LocalAddr() net.Addr              { return addr{} }
func (c *conn) RemoteAddr() net.Addr             { return addr{} }
func (c *conn) SetDeadline(time.Time) error      { return errNoDeadline }
func (c *conn) SetReadDeadline(time.Time) error  { return errNoDeadline }
func (c *conn) SetWriteDeadline(time.Time) error { return errNoDeadline }

var errNoDeadline = errors.New("a byte stream has no deadlines")

// addr is the address of a byte stream, which has none.
type addr struct{}

func (addr) Network() string { return "stream" }
func (addr) String() string  { return "stream" }
