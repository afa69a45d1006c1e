package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
	"github.com/kubeveil/kubeveil/e2e/lab/authority"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const patient = 30 * time.Second

func TestGoodInRow(t *testing.T) {
	for text, want := range map[string]int{"": 0, "good good": 2, "good bad": 0, "bad good good": 2,
		"good bad good": 1, "good open good": 1, "bad good open good good": 1, "open good": 0} {
		var all []*attempt
		for _, word := range strings.Fields(text) {
			all = append(all, &attempt{over: word != "open", good: word == "good"})
		}
		if got := goodInRow(all); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// attempts continues until enough requests in a row were answered. It begins requests while others
// still wait.
func TestAttemptsSettle(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	release := make(chan struct{})
	n := 0
	var mu sync.Mutex
	all := attempts(ctx, func(context.Context) error {
		mu.Lock()
		n++
		number := n
		mu.Unlock()
		switch number {
		case 1: // waits until other requests were answered
			<-release
			return errAnswer
		case 3:
			close(release)
		}
		return nil
	}, stop)
	if len(all) <= freshInRow || all[0].good || !all[0].over {
		t.Errorf("%d attempts, the first %+v", len(all), all[0])
	}
}

// A watch counts each version that it did not see once, also versions that it skips by a GET.
func TestWatchCountsWhatItMissed(t *testing.T) {
	var out bytes.Buffer
	h := &held{out: &out, clients: 1}
	w := &watched{held: h}
	version := func(number int, at time.Time) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{keyNumber: strconv.Itoa(number),
			keyAt: strconv.FormatInt(at.UnixNano(), 10)}}
	}
	begin := time.Now()
	w.note(version(3, begin))
	if out.Len() > 0 {
		t.Errorf("printed %q before an event", out.String())
	}
	w.see(version(4, begin))
	h.marked = begin.Add(time.Second)
	w.see(version(7, begin)) // 5 and 6
	if h.tally.Missed != 2 || h.served != 0 {
		t.Errorf("missed %d, served %d: want 2 and 0", h.tally.Missed, h.served)
	}
	w.note(version(9, begin)) // 8
	w.see(version(9, begin))
	w.see(version(10, begin.Add(2*time.Second)))
	if h.tally.Missed != 3 || out.String() != LineHeld+"\n"+LineServed+"\n" {
		t.Errorf("missed %d, printed %q", h.tally.Missed, out.String())
	}
}

// memory is an API server in this process, with certificates in dir.
type memory struct {
	*httptest.Server
	conns *sync.Map // the accepted connections, *tls.Conn
	dir   string
	to    netip.AddrPort
}

func newMemory(t *testing.T) memory {
	t.Helper()
	m := memory{dir: t.TempDir(), conns: &sync.Map{}}
	a, err := authority.New(m.dir)
	if err == nil {
		err = errors.Join(a.Server(nil), a.Client("client", server.User))
	}
	errtest.Must(t, err)
	config, err := server.Credentials(m.dir, "apiserver")
	errtest.Must(t, err)

	m.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	m.TLS, m.EnableHTTP2 = config, true
	m.Config.ErrorLog = log.New(io.Discard, "", 0)
	m.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			m.conns.Store(c, nil)
		}
	}

	m.StartTLS()
	t.Cleanup(m.Close)
	m.to = m.Listener.Addr().(*net.TCPAddr).AddrPort()
	return m
}

// cut resets all connections (RST), without a close_notify of TLS.
func (m memory) cut(t *testing.T) {
	t.Helper()
	m.conns.Range(func(c, _ any) bool {
		if raw, ok := c.(*tls.Conn).NetConn().(*net.TCPConn); !ok {
			t.Errorf("a connection is a %T, want TCP", c)
		} else if err := raw.SetLinger(0); err == nil {
			_ = raw.Close()
		}
		return true
	})
}

// lastTally returns the tally that a process of clients prints at its end.
func lastTally(t *testing.T, out *logtest.Buffer) (sum Tally) {
	t.Helper()
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	errtest.Must(t, json.Unmarshal([]byte(all[len(all)-1]), &sum))
	return sum
}

// printed waits until a process of clients has printed a line.
func printed(t *testing.T, out *logtest.Buffer, line string) {
	t.Helper()
	nettest.Until(t, patient, "line "+line, func() bool { return len(out.Lines(line)) > 0 })
}

// Each kind of client holds its connection. Connections that end after the mark are counted.
func TestHeldClientsCountConnections(t *testing.T) {
	m := newMemory(t)
	out := &logtest.Buffer{}
	h := newHeld(len(Kinds), 10*time.Millisecond, out)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, k := range Kinds {
		ask, err := k.make(m.to, m.dir, h.count(k.Name))
		errtest.Must(t, err)
		h.wg.Go(func() { h.keep(ctx, k.Name, ask) })
	}
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	printed(t, out, LineHeld)

	errtest.Must(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	printed(t, out, LineServed)
	h.mu.Lock()
	if len(h.tally.Closed) != 0 {
		t.Errorf("%v ended, want none: all are held", h.tally.Closed)
	}
	h.mu.Unlock()

	m.cut(t)
	nettest.Until(t, patient, "clients lose connections", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.tally.Closed) == len(Kinds)
	})
	stop()
	errtest.Must(t, <-ended)
	if sum := lastTally(t, out); len(sum.Served) != len(Kinds) || sum.Done < len(Kinds) {
		t.Errorf("%+v", sum)
	}
}

// Fresh, Fleet and Probe print their lines and count requests in their tallies.
func TestProcessesOfClients(t *testing.T) {
	m := newMemory(t)
	for name, run := range map[string]func(context.Context, *logtest.Buffer) error{
		KindFresh: func(ctx context.Context, out *logtest.Buffer) error {
			return Fresh(ctx, m.dir, m.to.String(), out)
		},
		"fleet": func(ctx context.Context, out *logtest.Buffer) error {
			return Fleet(ctx, m.dir, m.to.String(), 3, out)
		},
		"probe": func(ctx context.Context, out *logtest.Buffer) error {
			return Probe(ctx, m.to.String(), 3, out)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "probe" {
				nettest.NeedRoot(t)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			out := &logtest.Buffer{}
			ended := make(chan error, 1)
			go func() { ended <- run(ctx, out) }()
			printed(t, out, LineHeld)
			if name != "probe" {
				errtest.Must(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
				printed(t, out, LineServed)
			}

			stop()
			errtest.Must(t, <-ended)
			// On a busy machine, a request over a new connection may exceed FreshLimit.
			sum := lastTally(t, out)
			if sum.Failed > 0 && name != KindFresh || name != "probe" && sum.Done == 0 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
