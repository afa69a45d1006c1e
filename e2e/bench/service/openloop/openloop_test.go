package openloop

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// serve starts an echo server on loopback and returns its address. It calls open before it answers
// a byte.
func serve(t *testing.T, open func()) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)

	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			all.Go(func() {
				defer c.Close()
				b := make([]byte, 1)
				for {
					if _, err := c.Read(b); err != nil {
						return
					}
					open()
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
	})

	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serveDatagrams starts an echo server of datagrams on loopback and returns its address.
func serveDatagrams(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp4", "0.0.0.0:0")
	errtest.Must(t, err)
	var served sync.WaitGroup
	t.Cleanup(func() {
		c.Close()
		served.Wait()
	})
	served.Go(func() { errtest.Check(t, EchoDatagrams(c)) })
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), port)
}

func TestEveryOperationIsAnswered(t *testing.T) {
	for name, l := range map[string]Load{
		"datagrams in an open loop":       {Kind: Datagram, Rate: 2000, Slots: 4},
		"loose datagrams in an open loop": {Kind: Loose, Rate: 2000, Slots: 4},
		"datagrams in a closed one":       {Kind: Datagram, Slots: 4},
		"loose datagrams in a closed one": {Kind: Loose, Slots: 4},
		"connections in an open loop":     {Kind: Connect, Rate: 500, Slots: 16},
		"requests in an open loop":        {Kind: Request, Rate: 2000, Slots: 4},
		"connections in a closed one":     {Kind: Connect, Slots: 4},
		"requests in a closed one":        {Kind: Request, Slots: 4},
	} {
		t.Run(name, func(t *testing.T) {
			l.To, l.Warm, l.Duration = []netip.AddrPort{serve(t, func() {})}, 50*time.Millisecond,
				250*time.Millisecond
			if l.Kind == Datagram || l.Kind == Loose {
				l.To[0] = serveDatagrams(t)
			}
			r, err := l.RunBy(func(text string) ([]byte, error) {
				var out bytes.Buffer
				err := RunJSON(t.Context(), text, &out)
				return out.Bytes(), err
			})
			errtest.Must(t, err)
			if r.Failed != 0 || r.Unfinished != 0 || r.Done == 0 || r.Spent <= 0 ||
				r.Spent > time.Duration(runtime.NumCPU())*time.Minute {
				t.Fatalf("%+v", r)
			}

			if want := l.Rate * l.Duration.Seconds(); l.Rate != 0 && (float64(r.Done) < want-1 ||
				float64(r.Done) > want+1) {
				t.Errorf("%d operations at %v a second, want %v", r.Done, l.Rate, want)
			}

			if r.Min <= 0 || r.Min > r.P50 || r.P50 > r.P90 || r.P90 > r.P99 || r.P99 > r.P999 ||
				r.P999 > r.Max || r.Mean < r.Min || r.Mean > r.Max {
				t.Errorf("out of order: %+v", r)
			}
		})
	}
}

// stalled is a server that does not answer between two times.
func stalled(t *testing.T, from, to time.Duration) netip.AddrPort {
	begin := sync.OnceValue(time.Now)
	return serve(t, func() {
		if at := time.Since(begin()); at >= from && at < to {
			<-time.After(to - at)
		}
	})
}

// TestStallIsSeenByAllThatWereDue shows the advantage of an open loop. If a server stalls for a
// tenth of the time, a tenth of the operations are slow, not only the few that were under way.
func TestStallIsSeenByAllThatWereDue(t *testing.T) {
	const stall = 200 * time.Millisecond
	for _, kind := range []Kind{Connect, Request} {
		l := Load{Kind: kind, To: []netip.AddrPort{stalled(t, 300*time.Millisecond,
			300*time.Millisecond+stall)}, Rate: 500, Slots: 4, Duration: time.Second}
		r, err := l.Run(t.Context())
		errtest.Must(t, err)
		// A fifth of the operations waited, uniformly between zero and the whole stall.
		if r.P90 < stall/4 || r.P99 < stall*8/10 || r.Max < stall*9/10 {
			t.Errorf("%s: p90 %v, p99 %v, max %v do not show a stall of %v", kind, r.P90, r.P99,
				r.Max, stall)
		}
		if want := 500; r.Done+r.Unfinished != want {
			t.Errorf("%s: %d done, %d unfinished, want a total of %d", kind, r.Done, r.Unfinished,
				want)
		}
	}
}

func TestWhatHasNotEndedIsCounted(t *testing.T) {
	never := make(chan struct{})
	to := serve(t, func() { <-never })
	t.Cleanup(func() { close(never) })
	l := Load{Kind: Connect, To: []netip.AddrPort{to}, Rate: 100, Slots: 4,
		Duration: 100 * time.Millisecond}
	r, err := l.Run(t.Context())
	errtest.Must(t, err)
	if r.Done != 0 || r.Unfinished != 10 || r.P50 < grace {
		t.Errorf("%+v, want 10 unfinished that waited at least %v", r, grace)
	}
}

func TestRefusedConnectionsAreFailures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	to := []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}
	l.Close()
	r, err := Load{Kind: Connect, To: to, Rate: 100, Slots: 4,
		Duration: 100 * time.Millisecond}.Run(t.Context())
	errtest.Must(t, err)
	if r.Failed != 10 || r.Done != 0 || !strings.Contains(r.Error, "refused") {
		t.Errorf("%+v, want 10 that were refused", r)
	}
	if _, err := (Load{Kind: Connect, To: to, Slots: 4, Duration: time.Minute}).Run(
		t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a closed loop without a listener: %v, want an end with the reason", err)
	}
	if _, err := (Load{Kind: Request, To: to, Slots: 4, Duration: time.Minute}).Run(
		t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connections for requests: %v, want an error with the reason", err)
	}
}

func TestCheck(t *testing.T) {
	good := Load{Kind: Connect, To: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
		Slots: 1, Duration: 1}
	errtest.Check(t, good.check())
	for name, spoil := range map[string]func(*Load){
		"kind":       func(l *Load) { l.Kind = "other" },
		"no address": func(l *Load) { l.To = nil },
		"slots":      func(l *Load) { l.Slots = 0 },
		"duration":   func(l *Load) { l.Duration = 0 },
		"rate":       func(l *Load) { l.Rate, l.Duration = 1e9, time.Hour },
		"address":    func(l *Load) { l.To = []netip.AddrPort{{}} },
	} {
		l := good
		spoil(&l)
		if err := l.check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestPercentile(t *testing.T) {
	var times []time.Duration
	for i := range 1000 {
		times = append(times, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 500, 0.9: 900, 0.99: 990, 0.999: 999,
		1: 1000} {
		if got := percentile(times, q); got != want {
			t.Errorf("percentile %v of 1 to 1000 is %d, want %d", q, got, want)
		}
	}
	if got := percentile(times[:1], 0.999); got != 1 {
		t.Errorf("percentile of one is %d", got)
	}
}
