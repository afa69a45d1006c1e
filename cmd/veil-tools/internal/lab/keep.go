package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// keepResult is the result so far.
type keepResult struct {
	toolresult.Kept
	last time.Time // of the last answer
}

// keep sends requests to name servers (name-serve) over one socket until it gets a signal to end.
// It prints "now NAME" when another server answers. A TCP connection that ends is an error. keep
// replaces a connected UDP socket that is aborted or refused, as a resolver does. It keeps an
// unconnected one.
func keep(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("name-keep")
	proto := flags.Proto()
	to := flags.To("servers of name-serve")
	loose := flags.Bool("unconnected", false, "use an unconnected UDP socket")
	from := flags.FromPort()
	interval := flags.Interval(20*time.Millisecond, "two requests")
	timeout := flags.Timeout(500*time.Millisecond, "an answer over UDP")
	canary := flags.Canary("is sent")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	dial := func() (net.Conn, error) {
		return dialerFrom(*proto, *from, 5*time.Second).DialContext(ctx, *proto, *to)
	}
	if *loose {
		dial = func() (net.Conn, error) { return newLoose(*to, *from) }
	}

	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer func() { c.Close() }()
	var r keepResult
	tick := time.NewTicker(*interval)
	defer tick.Stop()

	for {
		wait := *timeout
		if *proto == "tcp" {
			wait = 30 * time.Second
		}

		a, err := askName(c, *canary, time.Now().Add(wait), wait)
		switch {
		case err == nil:
			r.answered(a.Name)
		case *proto == "tcp":
			return r.Kept, err
		default:
			r.Unanswered++
			if r.Error == "" {
				r.Error = err.Error()
			}
			if gone(err) {
				r.Aborted++
				c.Close()
				if c, err = dial(); err != nil {
					return r.Kept, err
				}
			}
		}

		select {
		case <-ctx.Done():
			return r.Kept, nil
		case <-tick.C:
		}
	}
}

func (r *keepResult) answered(name string) {
	r.Answered++
	now := time.Now()
	if !r.last.IsZero() {
		r.MaxGapMillis = max(r.MaxGapMillis, verb.Millis(now.Sub(r.last)))
	}
	r.last = now
	if n := len(r.Names); n == 0 || r.Names[n-1] != name {
		r.Names = append(r.Names, name)
		fmt.Println("now", name)
	}
}

// gone reports whether a UDP socket must be replaced, because it was refused or the kernel aborted
// it (udp_abort in net/ipv4/udp.c). After an abort, readers get ECONNABORTED and writers
// EDESTADDRREQ.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EDESTADDRREQ) ||
		errors.Is(err, syscall.ECONNREFUSED)
}

// loose is an unconnected UDP socket that sends all datagrams to one peer.
type loose struct {
	*net.UDPConn
	to *net.UDPAddr
}

func newLoose(to string, from int) (net.Conn, error) {
	addr, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		return nil, err
	}
	network := "udp4"
	if addr.IP.To4() == nil {
		network = "udp6"
	}
	c, err := net.ListenUDP(network, &net.UDPAddr{Port: from})
	if err != nil {
		return nil, err
	}
	return &loose{c, addr}, nil
}

// Write sends to the peer.
func (l *loose) Write(b []byte) (int, error) { return l.WriteTo(b, l.to) }

// Read reads a datagram. A datagram from another address than the peer's is an error.
func (l *loose) Read(b []byte) (int, error) {
	n, from, err := l.ReadFromUDP(b)
	if err == nil && (!from.IP.Equal(l.to.IP) || from.Port != l.to.Port) {
		return 0, fmt.Errorf("answer from %s, but the request was to %s", from, l.to)
	}
	return n, err
}
