package witness

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Socket is the abstract Unix socket (unix(7)) of veild. It belongs to a network namespace, so
// veil-site, which is on the host's network, reaches the veild of its node without a file, a port
// or a credential. Who may read it: each process on the host's network.
const Socket = "@kubeveil/sites/dead"

// root is the user of veild.
const root = 0

// Dial connects to a socket of veild in the network namespace of the calling thread. It refuses a
// socket of another user: any process may take the name while veild is away.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("no veild of this node with imports of a site serves %s: %w", socket,
			err)
	}
	if err != nil {
		return nil, err
	}

	user, err := userOf(c.(*net.UnixConn))
	if err == nil && user != root {
		err = fmt.Errorf("a process of user %d has the socket %s of veild: end it", user, socket)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// userOf returns the user of the process that listens at the other end (SO_PEERCRED).
func userOf(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return 0, e
	}
	if err != nil {
		return 0, fmt.Errorf("find the user of a socket: %w", err)
	}
	return cred.Uid, nil
}
