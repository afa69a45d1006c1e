package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// serveRoundTrips serves an echo server on session.RoundTripsPort until ctx ends.
func serveRoundTrips(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", session.RoundTripsPort))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			// Do not use io.Copy: it would splice, which is slow for small messages.
			b := make([]byte, 1<<16)
			for {
				n, err := c.Read(b)
				if err != nil {
					return
				}
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// dialPatience limits how long connecting, and each message, may take.
const dialPatience = 5 * time.Second

// warmUp is the number of turns at the beginning that are not counted.
const warmUp = 20

func roundTrips(ctx context.Context, a session.RoundTrips) (any, error) {
	if a.Size < 1 || a.Count < 1 || a.Most <= 0 || len(a.To) == 0 {
		return nil, fmt.Errorf("size %d, count %d, most %v, to %v: none may be zero or empty",
			a.Size, a.Count, a.Most, a.To)
	}
	ends := make([]*end, len(a.To))
	for i, to := range a.To {
		c, err := (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "tcp", to.String())
		if err != nil {
			return nil, err
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		ends[i] = &end{conn: c, out: message(a), in: make([]byte, a.Size)}
	}
	if err := transact(ends, a); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	all := make([]session.Latency, len(ends))
	for i, e := range ends {
		all[i] = e.latency()
	}
	return all, nil
}

// message returns a message of a.Size bytes, filled with a.Fill, or zeros if that is empty.
func message(a session.RoundTrips) []byte {
	out := make([]byte, a.Size)
	for i := 0; a.Fill != "" && i < len(out); {
		i += copy(out[i:], a.Fill)
	}
	return out
}

// end is one of the connections that take turns. took holds the time of each round trip.
type end struct {
	conn    net.Conn
	out, in []byte
	took    []time.Duration
}

// transact makes turns until a requires no more. In each turn, each end makes one round trip, in
// random order.
func transact(ends []*end, a session.RoundTrips) error {
	for began, turn := time.Now(), 1; ; turn++ {
		for _, i := range rand.Perm(len(ends)) {
			if err := ends[i].transact(); err != nil {
				return err
			}
		}
		past := time.Since(began)
		if counted := turn - warmUp; counted > 0 && (past >= a.Most ||
			counted >= a.Count && past >= a.Least) {
			return nil
		}
	}
}

func (e *end) transact() error {
	sent := time.Now()
	if err := e.conn.SetDeadline(sent.Add(dialPatience)); err != nil {
		return err
	}
	if _, err := e.conn.Write(e.out); err != nil {
		return err
	}
	if _, err := io.ReadFull(e.conn, e.in); err != nil {
		return err
	}
	e.took = append(e.took, time.Since(sent))
	return nil
}

func (e *end) latency() session.Latency {
	took := slices.Sorted(slices.Values(e.took[warmUp:]))
	at := func(share float64) time.Duration { return took[int(share*float64(len(took)-1))] }
	return session.Latency{Count: len(took), P50: at(0.5), P99: at(0.99)}
}

// await waits for a connection that sends the token, and sends the token back.
func await(ctx context.Context, a session.Await) (any, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", session.AwaitPort))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
		if saysToken(c, a.Token) {
			return struct{}{}, nil
		}
	}
}

func saysToken(c net.Conn, token string) bool {
	defer c.Close()
	got := make([]byte, len(token))
	_ = c.SetDeadline(time.Now().Add(dialPatience))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != token {
		return false
	}
	_, err := c.Write(got)
	return err == nil
}

// The time limit of one attempt of first to connect, and the pause after it. Both are short,
// because the time of success is measured.
const (
	firstTry   = 250 * time.Millisecond
	firstPause = 10 * time.Millisecond
)

// first sends the token to the address repeatedly until it is answered. Then it waits until ctx
// ends.
func first(ctx context.Context, args []string) error {
	flags := verb.Flags("tcp-first")
	to := flags.String("to", "", "`host:port` of a session that runs await")
	token := flags.String("token", "", "`text` that the session waits for")
	if err := Verbs().Parse(flags, "", args); err != nil {
		return err
	}
	for ctx.Err() == nil && !sayToken(ctx, *to, *token) {
		select {
		case <-ctx.Done():
		case <-time.After(firstPause):
		}
	}
	<-ctx.Done()
	return nil
}

func sayToken(ctx context.Context, to, token string) bool {
	c, err := (&net.Dialer{Timeout: firstTry}).DialContext(ctx, "tcp", to)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dialPatience))
	if _, err := io.WriteString(c, token); err != nil {
		return false
	}
	got := make([]byte, len(token))
	_, err = io.ReadFull(c, got)
	return err == nil
}
