package standin

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// request is what a command asks of a guest's init, over its socket. The descriptors that it is about come with it.
type request struct {
	Op   string
	Argv []string // opExec, with standard input, output and error
	Env  []string
	User string
	Path string // the working folder of opExec, the target of opPut, what opStat looks at

	Mode    fs.FileMode // opPut, with the file
	Folders bool        // opPut makes the folders that are missing
}

// The operations of a guest's init.
const (
	opExec = "exec"
	opPut  = "put"
	opStat = "stat"
)

// answer is what a guest's init says.
type answer struct {
	Exit  int // of opExec
	Error string
}

// requestLimit bounds a request: arguments and environment of a command, which the kernel bounds too.
const requestLimit = 8 << 20

// socket is the address of the sandbox's init. It has no name in a file system, so nothing is left of it. It is found from the network
// namespace of the keeper only.
func (m machine) socket() *net.UnixAddr { return &net.UnixAddr{Name: "@" + m.Socket, Net: "unix"} }

// ask sends a request to the sandbox's init and waits for the answer. A command in the guest is ended when this process ends.
func (m machine) ask(r request, files ...*os.File) (answer, error) {
	conn, err := net.DialUnix("unix", nil, m.socket())
	if err != nil {
		return answer{}, fmt.Errorf("sandbox '%s' does not answer: %w", m.Name, err)
	}
	defer conn.Close()
	if err := send(conn, r, files...); err != nil {
		return answer{}, fmt.Errorf("sandbox '%s': %w", m.Name, err)
	}
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return answer{}, errors.New("exec session ended without exit event")
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// send writes a value as JSON with its length before it, and files with that.
func send(conn *net.UnixConn, v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		raw, err := f.SyscallConn() // Fd would make the file block, and others may have it open
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return err
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := conn.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = conn.Write(body)
	return err
}

// receive reads what send wrote. The descriptors are the caller's to close.
func receive(conn *net.UnixConn, v any) (fds []int, err error) {
	const most = 4
	head, control := make([]byte, 4), make([]byte, unix.CmsgSpace(most*4))
	n, controlLen, _, _, err := conn.ReadMsgUnix(head, control)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlLen])
	if err != nil {
		return nil, err
	}
	for _, msg := range messages {
		if got, err := unix.ParseUnixRights(&msg); err == nil {
			fds = append(fds, got...)
		}
	}
	_, err = io.ReadFull(conn, head[n:])
	size := binary.BigEndian.Uint32(head)
	if err == nil && size > requestLimit {
		err = fmt.Errorf("a message of %d bytes is too long", size)
	}
	if err == nil {
		body := make([]byte, size)
		if _, err = io.ReadFull(conn, body); err == nil {
			err = json.Unmarshal(body, v)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// keeperSocket is the address of a socket that only the sandbox's keeper has: it is there as long as the keeper lives.
func (m machine) keeperSocket() *net.UnixAddr {
	return &net.UnixAddr{Name: "@" + m.Socket + "-keeper", Net: "unix"}
}

// endKeeper sends a signal to the sandbox's keeper, if it lives, and to no other process.
func (m machine) endKeeper(sig unix.Signal) error {
	fail := func(err error) error {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ESRCH) { // it is dead
			return nil
		}
		return fmt.Errorf("end the keeper of sandbox '%s': %w", m.Name, err)
	}
	pid, err := m.keeperPID()
	if err != nil {
		return fail(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	if _, err := m.keeperPID(); err != nil { // it lives: so its number was not another's when it was opened
		return fail(err)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return fail(err)
	}
	return nil
}

// keeperPID gives the process that listens on the keeper's socket. The error is ECONNREFUSED when there is none.
func (m machine) keeperPID() (int, error) {
	conn, err := net.DialUnix("unix", nil, m.keeperSocket())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, peerErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}
