package confsocket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// chatty is a device whose answer is larger than any socket buffer.
type chatty struct{ nothing }

func (*chatty) IpcGetOperation(w io.Writer) error {
	_, err := io.WriteString(w, strings.Repeat("public_key=00\n", 1<<20))
	return err
}

// dial connects to a server that serves dev.
func dial(t *testing.T, dev Device) (*Server, func() *net.UnixConn) {
	t.Helper()
	s := &Server{Device: dev, State: filepath.Join(t.TempDir(), "state")}
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go s.Serve(l)
	return s, func() *net.UnixConn {
		t.Helper()
		c, err := net.DialUnix("unix", nil, addr)
		errtest.Must(t, err)
		t.Cleanup(func() { c.Close() })
		errtest.Must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		return c
	}
}

// say1 sends text and returns the first byte of the answer.
func say1(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// A client that does not read its answer does not delay a handover.
func TestClientThatDoesNotReadHoldsNoHandover(t *testing.T) {
	s, connect := dial(t, &chatty{})
	errtest.Must(t, say1(connect(), "get=1\n\n")) // The answer is being written, and does not fit.
	for i := range 3 {
		if !s.Hold(10 * time.Second) {
			t.Fatalf("attempt %d: refused, an operation is under way", i)
		}
		s.Release()
	}
}

// slow is a device whose operations take as long as the test sets.
type slow struct {
	nothing
	begun, end chan struct{}
}

func (d *slow) IpcSetOperation(io.Reader) error {
	d.begun <- struct{}{}
	<-d.end
	return nil
}

// A handover waits for an operation that is under way, and later ones wait for the handover.
func TestHandoverWaitsForAnOperation(t *testing.T) {
	d := &slow{begun: make(chan struct{}), end: make(chan struct{})}
	s, connect := dial(t, d)
	first, second := connect(), connect()
	answered := make(chan error, 2)
	go func() { answered <- say1(first, "set=1\n\n") }()
	<-d.begun
	if s.Hold(time.Millisecond) {
		t.Fatal("a handover began in the middle of an operation")
	}
	held := make(chan bool)
	go func() { held <- s.Hold(20 * time.Second) }()
	d.end <- struct{}{}
	errtest.Must(t, <-answered)
	if !<-held {
		t.Fatal("the handover did not begin after the operation")
	}
	go func() { answered <- say1(second, "set=1\n\n") }()
	s.Release()
	<-d.begun
	d.end <- struct{}{}
	errtest.Must(t, <-answered)
}

// If there are too many clients, those that were silent longest are closed.
func TestClientsAreBounded(t *testing.T) {
	s, connect := dial(t, &nothing{})
	var all []*net.UnixConn
	for i := range maxClients + 3 {
		all = append(all, connect())
		nettest.Until(t, 10*time.Second, "the client is known", func() bool {
			s.clients.mu.Lock()
			defer s.clients.mu.Unlock()
			return len(s.clients.idle) == min(i+1, maxClients)
		})
		if i >= maxClients { // The number proves nothing: an answer does.
			errtest.Must(t, say1(all[i], "drops=1\n\n"))
		}
	}
	gone := 0
	for i, c := range all {
		if err := say1(c, "get=1\n\n"); err == nil {
			continue
		} else if i >= 3 {
			t.Errorf("client %d of %d: %v", i, len(all), err)
		}
		gone++
	}
	if gone != 3 {
		t.Errorf("%d clients were closed, want the first 3", gone)
	}
}

// If all clients are busy, a further client is closed at once.
func TestClientsThatAreBusyStay(t *testing.T) {
	var c clients
	var all []*script
	for range maxClients {
		all = append(all, &script{})
		if !c.enter(all[len(all)-1]) || !c.begin(all[len(all)-1]) {
			t.Fatal("a client below the bound was refused")
		}
	}
	if c.enter(&script{}) {
		t.Error("a client beyond the bound was taken")
	}
	c.end(all[0])
	next := &script{}
	if !c.enter(next) || c.begin(all[0]) {
		t.Error("an idle client did not make room")
	}
	c.leave(next)
	if len(c.idle) != 0 || c.busy != maxClients-1 {
		t.Errorf("%d idle and %d busy clients, want 0 and %d", len(c.idle), c.busy, maxClients-1)
	}
}

// timed is a client that records its deadlines.
type timed struct {
	script
	limits []bool
}

func (c *timed) SetDeadline(end time.Time) error {
	c.limits = append(c.limits, !end.IsZero())
	return nil
}

// A client has a limited time to finish a request and to read the answer. It may wait any time
// before a request.
func TestClientHasADeadline(t *testing.T) {
	c := &timed{script: script{Reader: strings.NewReader("get=1\n\n")}}
	s := &Server{Device: &nothing{}}
	s.handle(c)
	want := []bool{false, true, true, false}
	if len(c.limits) != len(want) {
		t.Fatalf("deadlines %v, want %v", c.limits, want)
	}
	for i := range want {
		if c.limits[i] != want[i] {
			t.Errorf("deadlines %v, want %v", c.limits, want)
		}
	}
}

// An operation without an end is refused before it grows.
func TestEndlessOperationIsRefused(t *testing.T) {
	d := &dropper{}
	r := &endless{}
	(&Server{Device: d}).handle(&script{Reader: r})
	if r.n > 1<<20 || d.refused != 1 {
		t.Errorf("read %d bytes, %d refused, want few and 1", r.n, d.refused)
	}
}

// endless is a line without an end.
type endless struct{ n int }

func (r *endless) Read(p []byte) (int, error) {
	if r.n > 64<<20 {
		return 0, errors.New("too much was read")
	}
	r.n += len(p)
	return copy(p, bytes.Repeat([]byte("x"), len(p))), nil
}

// Large configurations are read one after another.
func TestLargeSetsTakeTurns(t *testing.T) {
	s, connect := dial(t, &nothing{})
	large := "set=1\n" + strings.Repeat("allowed_ip=10.0.0.0/8\n", largeSet/20)
	first, second := connect(), connect()
	errtest.Must(t, errtest.Of(io.WriteString(first, large)))
	nettest.Until(t, 10*time.Second, "the first is being read", func() bool {
		if s.clients.large.TryLock() {
			s.clients.large.Unlock()
			return false
		}
		return true
	})
	answered := make(chan error, 1)
	go func() { answered <- say1(second, large+"\n") }()
	select {
	case err := <-answered:
		t.Fatalf("the second was answered before the first: %v", err)
	case <-time.After(10 * time.Millisecond): // A wrong answer may come later: then this passes.
	}
	first.Close()
	errtest.Must(t, <-answered)
}
