package openloop

import (
	"errors"
	"net"
)

// Echo accepts connections from l and returns each byte that it receives to the sender. It returns
// nil when l is closed.
func Echo(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go answer(c)
	}
}

// answer serves a connection until the client closes it, usually by a reset.
func answer(c net.Conn) {
	defer c.Close()
	b := make([]byte, 64)
	for {
		n, err := c.Read(b)
		if n > 0 {
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
