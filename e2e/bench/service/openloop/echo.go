package openloop

import (
	"errors"
	"net"

	"golang.org/x/net/ipv4"
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

// EchoDatagrams returns each datagram that c receives to its sender, from the address to which it
// was sent. It returns nil when c is closed. c must be a socket of IPv4.
func EchoDatagrams(c net.PacketConn) error {
	p := ipv4.NewPacketConn(c)
	err := p.SetControlMessage(ipv4.FlagDst, true)
	for b := make([]byte, 64); err == nil; {
		var n int
		var got *ipv4.ControlMessage
		var from net.Addr
		if n, got, from, err = p.ReadFrom(b); err == nil {
			_, _ = p.WriteTo(b[:n], &ipv4.ControlMessage{Src: got.Dst}, from)
		}
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
