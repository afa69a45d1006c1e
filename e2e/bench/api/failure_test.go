package api

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

	"github.com/kubeveil/kubeveil/e2e/lab/authority"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const patient = 30 * time.Second

// A server that writes to the log hangs while the log is stalled, and only then.
func TestAuditLogHangs(t *testing.T) {
	a, err := newAuditLog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	w, err := os.OpenFile(a.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	event := bytes.Repeat([]byte("x"), 1<<20) // more than the pipe has room for
	write := func(limit time.Duration) error {
		_ = w.SetWriteDeadline(time.Now().Add(limit))
		_, err := w.Write(event)
		return err
	}

	for range 2 {
		if err := write(patient); err != nil {
			t.Errorf("write to a log that is read: %v", err)
		}
		if _, err := a.stall(); err != nil {
			t.Fatal(err)
		}
		if err := write(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write to a log that is stalled: %v, want that it hangs", err)
		}
		if err := a.flow(); err != nil {
			t.Fatal(err)
		}
	}
}

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

// Attempts go on until enough in a row were answered, and begin while others wait.
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
		case 1: // hangs until others were answered
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

func TestConnectionsByPeer(t *testing.T) {
	got, err := parsePeers("0 0 198.18.1.2:4000 198.18.0.2:6443\n" +
		"0 5 [::ffff:198.18.1.2]:4001   [::ffff:198.18.0.2]:6443 \n0 0 [fd42::1]:1 [fd42::2]:2\n")
	if err != nil || got[netip.MustParseAddrPort("198.18.0.2:6443")] != 2 ||
		got[netip.MustParseAddrPort("[fd42::2]:2")] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"0 0 a", "0 0 198.18.1.2:4000 nowhere"} {
		if _, err := parsePeers(bad); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
	if got := ratioOf([]int{200, 0}); got != 200 {
		t.Errorf("ratio %v, want 200", got)
	}
	if got := ratioOf([]int{80, 120}); got != 1.5 {
		t.Errorf("ratio %v, want 1.5", got)
	}
}

// A watch counts the versions that it did not see once, also those that it skips by reading.
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
	if h.tally.Missed != 3 || out.String() != lineHeld+"\n"+lineServed+"\n" {
		t.Errorf("missed %d, printed %q", h.tally.Missed, out.String())
	}
}

// memory is an API server in this process, with certificates in dir.
type memory struct {
	*httptest.Server
	conns *sync.Map // of *tls.Conn, those that were accepted
	dir   string
	to    netip.AddrPort
}

func newMemory(t *testing.T) memory {
	t.Helper()
	m := memory{dir: t.TempDir(), conns: &sync.Map{}}
	a, err := authority.New(m.dir)
	if err == nil {
		err = errors.Join(a.Server(nil), a.Client("client", user))
	}
	if err != nil {
		t.Fatal(err)
	}
	config, err := credentials(m.dir, "apiserver")
	if err != nil {
		t.Fatal(err)
	}

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

// cut resets all connections (RST), without a farewell of TLS.
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
func lastTally(t *testing.T, out *logtest.Buffer) (sum tally) {
	t.Helper()
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(all[len(all)-1]), &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}

// printed waits for a line.
func printed(t *testing.T, out *logtest.Buffer, line string) {
	t.Helper()
	nettest.Until(t, patient, "line "+line, func() bool { return len(out.Lines(line)) > 0 })
}

// Each kind of client holds its connection. One that ends is counted, since the mark.
func TestHeldClientsCountConnections(t *testing.T) {
	m := newMemory(t)
	out := &logtest.Buffer{}
	h := newHeld(len(kinds), 10*time.Millisecond, out)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, k := range kinds {
		ask, err := k.make(m.to, m.dir, h.count(k.name))
		if err != nil {
			t.Fatal(err)
		}
		h.wg.Go(func() { h.keep(ctx, k.name, ask) })
	}
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	printed(t, out, lineHeld)

	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	printed(t, out, lineServed)
	h.mu.Lock()
	if len(h.tally.Closed) != 0 {
		t.Errorf("%v ended: all are held", h.tally.Closed)
	}
	h.mu.Unlock()

	m.cut(t)
	nettest.Until(t, patient, "clients lose connections", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.tally.Closed) == len(kinds)
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if sum := lastTally(t, out); len(sum.Served) != len(kinds) || sum.Done < len(kinds) {
		t.Errorf("%+v", sum)
	}
}

// Clients that connect for each request, a fleet, and probers do what their parts need.
func TestProcessesOfClients(t *testing.T) {
	m := newMemory(t)
	for name, run := range map[string]func(context.Context, *logtest.Buffer) error{
		kindFresh: func(ctx context.Context, out *logtest.Buffer) error {
			return fresh(ctx, m.dir, m.to.String(), out)
		},
		"fleet": func(ctx context.Context, out *logtest.Buffer) error {
			return fleet(ctx, m.dir, m.to.String(), 3, out)
		},
		"probe": func(ctx context.Context, out *logtest.Buffer) error {
			return probe(ctx, m.to.String(), 3, out)
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
			printed(t, out, lineHeld)
			if name != "probe" {
				if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
					t.Fatal(err)
				}
				printed(t, out, lineServed)
			}

			stop()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			// Requests over new connections have freshLimit each, which a busy machine may exceed.
			sum := lastTally(t, out)
			if sum.Failed > 0 && name != kindFresh || name != "probe" && sum.Done == 0 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

// What a slow host sends takes that much longer, and after it as before.
func TestDelay(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNS(t)
	const by = 50 * time.Millisecond
	undo, err := delay(ns.Do, by)
	if err != nil {
		t.Fatal(err)
	}

	var took time.Duration
	ns.Run(t, func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		begin := time.Now()
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		took = time.Since(begin)
		return c.Close()
	})
	if took < 2*by { // the SYN and its answer
		t.Errorf("a connect took %v, want at least %v", took, 2*by)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if again, err := delay(ns.Do, by); err != nil {
		t.Errorf("delay again: %v", err)
	} else if err := again(); err != nil {
		t.Error(err)
	}
}

// Each case of the labs is in a table, whose rows have as many cells as its head.
func TestTablesOfLabs(t *testing.T) {
	s := &run{Run: &suite.Run{Result: &bench.Result{}, Labels: map[string]string{}}}
	for _, part := range []string{partFailure, partFailure6} {
		for _, f := range faults {
			for kind := range heldKinds() {
				s.Add(caseFailure(part, f, kind), "label", bench.Millisecond, 1, 2)
			}
			s.Add(caseFailure(part, f, kindWatch)+suffixMissed, "label", bench.Count, 0)
		}
	}
	for _, name := range []string{caseHang + suffixWorst, caseHangClosed, caseSpread,
		caseSpreadBefore, caseRestartClosed, caseRestartDone, caseRestartLost} {
		s.Add(name, "label", bench.Count, 1)
	}
	for _, trouble := range troubles {
		s.Add(caseWell(trouble), "label", bench.Count, 0)
	}
	if err := s.addProbed(probed{1, 2, 3}, probed{4, 5, 6}, tally{}); err != nil {
		t.Fatal(err)
	}

	tables := s.tables()
	if len(tables) != 2 || len(tables[0].Rows) != len(faults)*(len(kinds)+1) ||
		len(tables[1].Rows) != 7+len(troubles)+4 {
		t.Fatalf("%+v", tables)
	}
	for _, table := range tables {
		for _, row := range table.Rows {
			if len(row) != len(table.Head) {
				t.Errorf("%s: row %q", table.Title, row)
			}
		}
	}
}
