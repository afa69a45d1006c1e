package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// nameAnswer is the answer of name-serve to a line, one line of JSON.
type nameAnswer struct {
	Name string `json:"name"`
	// From is the client's address as the server sees it.
	From string `json:"from"`
	// Said is the line that the client sent.
	Said string `json:"said"`
}

// name answers each line over TCP and each datagram with its name, on one or more ports, until it
// gets a signal to end.
func name(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("name-serve")
	called := flags.String("name", "", "name to answer with")
	first := flags.Int("port", 7010, "first port, for both TCP and UDP")
	count := flags.Count(1, "number of ports; with more than one the answer is name:port")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	for port := *first; port < *first+*count; port++ {
		answer := *called
		if *count > 1 {
			answer = fmt.Sprintf("%s:%d", *called, port)
		}
		l, u, err := listenBoth(fmt.Sprintf(":%d", port))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		defer u.Close()
		go nameConnections(l, answer)
		go nameDatagrams(u, answer)
	}

	fmt.Println("listening")
	<-ctx.Done()
	return nil, nil
}

func (a nameAnswer) line() []byte {
	b, _ := json.Marshal(a) // of strings, so it cannot fail
	return append(b, '\n')
}

func nameConnections(l net.Listener, called string) {
	serveConnections(l, func(c net.Conn) {
		// Ignore the error: if a connection breaks, the client reports that.
		_ = verb.AnswerLines(c, c, func(line string) (any, error) {
			return nameAnswer{called, c.RemoteAddr().String(), line}, nil
		})
	})
}

func nameDatagrams(u net.PacketConn, called string) {
	answerDatagrams(u, func(b []byte, from net.Addr) []byte {
		return nameAnswer{called, from.String(), strings.TrimSpace(string(b))}.line()
	})
}

// census sends requests to servers of name-serve behind one address, each over a new socket. It
// counts the answers by server. It stops early after --enough failures.
func census(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("name-count")
	proto := flags.Proto()
	to := flags.To("servers of name-serve")
	from := flags.FromPort()
	count := flags.Count(30, "number of requests")
	timeout := flags.Timeout(time.Second, "each request")
	enough := flags.Int("enough", 3, "stop after this number of failures")
	pause := flags.Duration("pause", 0, "pause between two requests")
	canary := flags.Canary("is sent")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	r := toolresult.Census{Names: map[string]int{}, Sources: map[string]int{}}
	for i := 0; i < *count && r.Failed < *enough; i++ {
		if i > 0 && *pause > 0 {
			select {
			case <-ctx.Done():
				return r, ctx.Err()
			case <-time.After(*pause):
			}
		}
		start := time.Now()
		a, err := askOnce(ctx, *proto, *to, *from, *canary, *timeout)
		r.SlowestMillis = max(r.SlowestMillis, verb.Millis(time.Since(start)))
		tally(&r, a, err)
	}

	return r, nil
}

// tally counts an answer.
func tally(r *toolresult.Census, a nameAnswer, err error) {
	if err != nil {
		r.Failed++
		if errors.Is(err, syscall.ECONNREFUSED) {
			r.Refused++
		}
		if r.Error == "" {
			r.Error = err.Error()
		}
		return
	}
	r.Names[a.Name]++
	if from, err := netip.ParseAddrPort(a.From); err == nil {
		r.Sources[from.Addr().Unmap().String()]++
	}
}

// askOnce sends one request over a new socket.
func askOnce(ctx context.Context, proto, to string, from int, canary string,
	timeout time.Duration) (nameAnswer, error) {
	c, err := dialerFrom(proto, from, timeout).DialContext(ctx, proto, to)
	if err != nil {
		return nameAnswer{}, err
	}
	defer c.Close()
	again := timeout
	if proto == "udp" {
		again = udpAgain
	}
	return askName(c, canary, time.Now().Add(timeout), again)
}

// udpAgain is the delay after which a datagram without an answer is sent again.
const udpAgain = 300 * time.Millisecond

// askName sends a request over a socket and returns the answer. Without an answer it repeats the
// request at the interval again, until the deadline.
func askName(c net.Conn, canary string, deadline time.Time,
	again time.Duration) (a nameAnswer, err error) {
	b := make([]byte, 4096)
	for {
		if _, err := c.Write([]byte(canary + "\n")); err != nil {
			return a, err
		}
		next := time.Now().Add(again)
		if next.After(deadline) {
			next = deadline
		}
		_ = c.SetReadDeadline(next)
		n, err := c.Read(b)
		if err == nil {
			return parseName(b[:n], canary)
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() || !time.Now().Before(deadline) {
			return a, err
		}
	}
}

// parseName parses the answer b to the line said.
func parseName(b []byte, said string) (a nameAnswer, err error) {
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("answer %q: %w", b, err)
	}
	if a.Name == "" || a.Said != said {
		return a, fmt.Errorf("answer %q: not an answer to the sent line", b)
	}
	return a, nil
}
