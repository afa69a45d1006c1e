// Package gate forwards connections from the loopback to the API server of a lab, which nothing
// outside the lab's namespaces reaches. A closed gate stands for an API server that is away.
//
// Start reading at New.
package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
)

// Gate forwards connections until Close.
type Gate struct {
	listener net.Listener
	server   string
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// New returns an open gate to the API server of a configuration, which has a Dial.
func New(c *rest.Config) (*Gate, error) {
	u, err := url.Parse(c.Host)
	if err != nil {
		return nil, err
	}
	g := &Gate{server: u.Host, dial: c.Dial, open: map[net.Conn]bool{}}
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("gate to %s: %w", u.Host, err)
	}
	g.wg.Go(g.accept)
	return g, nil
}

// URL returns the URL by which programs on this machine reach the API server.
func (g *Gate) URL() string { return "https://" + g.listener.Addr().String() }

// Set closes or opens the gate. Closing ends all connections.
func (g *Gate) Set(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = closed
	for c := range g.open {
		if closed {
			c.Close()
		}
	}
}

// Close ends the gate and all connections.
func (g *Gate) Close() error {
	err := g.listener.Close()
	g.Set(true)
	g.wg.Wait()
	return err
}

func (g *Gate) accept() {
	for {
		c, err := g.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			g.wg.Go(func() { g.forward(c) })
		}
	}
}

func (g *Gate) forward(c net.Conn) {
	defer c.Close()
	server, err := g.dial(context.Background(), "tcp", g.server)
	if err != nil {
		return
	}
	defer server.Close()
	if !g.admit(c, server) {
		return
	}

	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, server}, {server, c}} {
		wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // ends with the connection
			pair[0].Close()
		})
	}
	wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, c)
	delete(g.open, server)
}

// admit notes a connection and its other half, unless the gate is closed.
func (g *Gate) admit(c, server net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.open[c], g.open[server] = true, true
	}
	return !g.closed
}
