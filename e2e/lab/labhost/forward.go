package labhost

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
)

// Forward forwards connections from a port of loopback of this machine to an address that the host
// reaches, until the listener is closed. It logs failures of single connections.
func (h *Host) Forward(ctx context.Context, to netip.AddrPort, log *slog.Logger) (net.Listener,
	error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			outer, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				if err := h.forward(outer, to); err != nil {
					log.Debug("forward", "to", to, "err", err)
				}
			}()
		}
	}()
	return l, nil
}

// forward forwards one connection until both directions have ended.
func (h *Host) forward(outer net.Conn, to netip.AddrPort) error {
	defer outer.Close()
	var inner net.Conn
	err := h.Do(func() (err error) {
		inner, err = net.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer inner.Close()
	var both sync.WaitGroup
	var errs [2]error
	carry := func(i int, to, from net.Conn) {
		_, errs[i] = io.Copy(to, from)
		errs[i] = errors.Join(errs[i], to.(*net.TCPConn).CloseWrite())
	}
	both.Go(func() { carry(0, inner, outer) })
	both.Go(func() { carry(1, outer, inner) })
	both.Wait()
	return errors.Join(errs[:]...)
}
