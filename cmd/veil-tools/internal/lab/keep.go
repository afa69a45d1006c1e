package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// keepResult is the final output of keep.
type keepResult struct {
	Answered   uint64 `json:"answered"`
	Unanswered uint64 `json:"unanswered"`
	// Error is the error of the first request without an answer.
	Error string `json:"error"`
	// Aborted counts how often the kernel aborted a connected UDP socket, which was then made
	// again.
	Aborted uint64 `json:"aborted"`
	// Names are the servers that answered, in order; each change of the server adds one.
	Names []string `json:"names"`
	// MaxGap is the longest time between two answers.
	MaxGap float64 `json:"maxGapMillis"`
	last   time.Time
}

// keep sends requests to named servers over one socket, again and again, and prints "now NAME" when
// the server changes, until it gets a signal to end. A TCP connection that ends is an error. A
// connected UDP socket that is aborted or refused is made again, as a resolver does; an unconnected
// one stays.
func keep(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("name-keep")
	proto := flags.Proto()
	to := flags.To("named servers")
	loose := flags.Bool("unconnected", false, "a UDP socket without a peer of its own")
	from := flags.FromPort()
	interval := flags.Interval(20*time.Millisecond, "two")
	timeout := flags.Timeout(500*time.Millisecond, "an answer of UDP")
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
			return r, err
		default:
			r.Unanswered++
			if r.Error == "" {
				r.Error = err.Error()
			}
			if gone(err) {
				r.Aborted++
				c.Close()
				if c, err = dial(); err != nil {
					return r, err
				}
			}
		}

		select {
		case <-ctx.Done():
			return r, nil
		case <-tick.C:
		}
	}
}

func (r *keepResult) answered(name string) {
	r.Answered++
	now := time.Now()
	if !r.last.IsZero() {
		r.MaxGap = max(r.MaxGap, verb.Millis(now.Sub(r.last)))
	}
	r.last = now
	if n := len(r.Names); n == 0 || r.Names[n-1] != name {
		r.Names = append(r.Names, name)
		fmt.Println("now", name)
	}
}

// gone reports whether a UDP socket is unusable because the kernel disconnected it (udp_abort in
// net/ipv4/udp.c). Readers get the first of these errors, writers the second.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EDESTADDRREQ) ||
		errors.Is(err, syscall.ECONNREFUSED)
}

// loose is a UDP socket that names its peer with each datagram.
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

// Read accepts packets from the peer; from any other address it is an error.
func (l *loose) Read(b []byte) (int, error) {
	n, from, err := l.ReadFromUDP(b)
	if err == nil && (!from.IP.Equal(l.to.IP) || from.Port != l.to.Port) {
		return 0, fmt.Errorf("an answer from %s, asked was %s", from, l.to)
	}
	return n, err
}
