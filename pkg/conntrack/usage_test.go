package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// restart replaces the Limiter by a new one, as after a restart of veild. It does not call Run.
func (l *lab) restart() {
	l.tracked.close()
	l.Limiter = New(l.o)
}

// limited returns the limited addresses in the kernel's table.
func limited() (addrs []netip.Addr, err error) {
	found, err := nft.Sets(abi.NFTLimitTable, isPods)
	for _, s := range found {
		for _, e := range s.Elements {
			a, _ := netip.AddrFromSlice([]byte(e.Key))
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, err
}

// begin runs the Limiter until its first reading.
func (l *lab) begin() {
	l.t.Helper()
	ended, cancel := context.WithCancel(l.t.Context())
	cancel()
	l.node.Run(l.t, func() error {
		if err := l.Run(ended); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
}

// A pod above the limit cannot open connections while no veild runs, nor until the next veild has
// counted.
func TestLimitHoldsAcrossARestart(t *testing.T) {
	l := newLab(t, 100)
	l.track()
	l.open(addrsOf(1)[0], 120)
	if s := l.look(); !slices.Equal(s.Limited, []Usage{{"shop/one", 120}}) {
		t.Fatalf("full: %+v", s)
	}
	if asks(l.dial(1, 0), false) {
		t.Fatal("the control: a connection beyond the limit is opened")
	}
	dropped := l.look().Dropped

	l.restart()
	if asks(l.dial(1, 0), false) {
		t.Error("a connection beyond the limit is opened while no Limiter runs")
	}
	checked := false
	l.onReading = func() {
		checked = true
		if got, err := limited(); err != nil || !slices.Equal(got, addrsOf(1)) {
			t.Errorf("before the first reading limited are %v, %v, want %v", got, err, addrsOf(1))
		}
	}
	l.begin()
	if s := l.Status(); !checked || !slices.Equal(s.Limited, []Usage{{"shop/one", 120}}) ||
		s.Dropped < dropped+1 {
		t.Errorf("restarted: %+v, want that pod and at least %d dropped", s, dropped+1)
	}
	l.onReading = nil

	// The pod stays limited with more than nine tenths of the limit, and is free below.
	l.node.Run(t, nettest.ForgetConnections)
	l.open(addrsOf(1)[0], 95)
	l.restart()
	l.begin()
	if s := l.Status(); !slices.Equal(s.Limited, []Usage{{"shop/one", 95}}) {
		t.Errorf("above nine tenths: %+v", s)
	}
	l.node.Run(t, nettest.ForgetConnections)
	l.restart()
	l.begin()
	l.node.Run(t, func() error {
		if got, err := limited(); len(got) > 0 || err == nil {
			t.Errorf("without connections limited are %v, %v", got, err)
		}
		return nil
	})
}

// A limit on a pod that is gone, or a limit that was removed from the configuration, is lifted at
// the start.
func TestLimitOfAnEarlierVeildIsLifted(t *testing.T) {
	for name, limit := range map[string]int{"pod is gone": 100, "no limit": 0} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, limit)
			l.node.Run(t, func() error {
				return plan(map[string][]netip.Addr{"shop/gone": addrsOf(9)}).Replace()
			})
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			l.node.Run(t, func() error {
				_ = l.Run(ended)
				if got, err := limited(); len(got) > 0 || err == nil {
					t.Errorf("limited are %v, %v", got, err)
				}
				return nil
			})
		})
	}
}

// flood sends a datagram from a pod to each of count ports of the server, from the port from on.
// Each datagram opens a connection.
func (l *lab) flood(pod, from, count int) {
	l.t.Helper()
	l.pods[pod].Run(l.t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		b := make([]byte, 9) // a UDP header without a checksum, and a byte
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
		for i := from; i < from+count; i++ {
			binary.BigEndian.PutUint16(b[0:], uint16(1024+i>>10))
			binary.BigEndian.PutUint16(b[2:], uint16(1024+i&1023))
			to := &unix.SockaddrInet4{Addr: server[0].As4()}
			if err := unix.Sendto(fd, b, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
		return nil
	})
}

// A pod that opens as many connections as it can is limited, and the other pod can still open
// connections.
func TestFloodOfOnePodHoldsUpNoOther(t *testing.T) {
	const limit, burst = 1000, 2000
	l := newLab(t, limit)
	l.track()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.node.Do(func() error { return l.Run(ctx) }) }()
	defer func() { cancel(); <-done }()

	sent := 0
	nettest.Until(t, 20*time.Second, "the pod is limited", func() bool {
		l.flood(1, sent, burst)
		sent += burst
		if !asks(l.dial(2, sent/burst&1), true) {
			t.Error("the other pod opens no connection")
		}
		return len(l.Status().Limited) == 1
	})

	stopped, other := l.entries(), 0
	for range 5 {
		l.flood(1, sent, burst)
		sent += burst
		if !asks(l.dial(2, 0), true) {
			t.Error("beside a pod that is limited another opens no connection")
		}
		other++
	}
	t.Logf("limit %d: %d entries when it was stopped, of %d packets", limit, stopped, sent)
	if now := l.entries(); now > stopped+other {
		t.Errorf("%d entries, %d when the pod was stopped", now, stopped)
	}
	nettest.Until(t, 20*time.Second, "the packets are counted", func() bool {
		return l.Status().Dropped >= burst
	})
}

// entries returns how many connections are tracked.
func (l *lab) entries() (n int) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		opened, err := (&tracked{}).once()
		for _, count := range opened {
			n += count
		}
		return err
	})
	return n
}

// once reads the table with a new socket, and closes the socket.
func (t *tracked) once() (map[netip.Addr]int, error) {
	defer t.close()
	return t.read(time.Now())
}

// The table is read only if a pod may be above the limit, and then for at most a tenth of the time.
func TestReadingTheTableIsBounded(t *testing.T) {
	l := newLab(t, 100)
	step := func(now time.Time) {
		t.Helper()
		l.node.Run(t, func() error { return l.step(now) })
	}
	l.open(addrsOf(1)[0], 90)
	for range 3 {
		step(time.Now())
	}
	if l.readings != 0 {
		t.Errorf("%d readings of a table with fewer entries than one pod may open", l.readings)
	}

	l.open(addrsOf(2)[0], 20)
	began := time.Now()
	step(began)
	took := time.Since(began)
	pause := l.tracked.next.Sub(began)
	if l.readings != 1 || pause <= 0 || pause > pauses*took {
		t.Errorf("%d readings, the next %v after one that took at most %v", l.readings, pause, took)
	}
	step(l.tracked.next.Add(-1))
	if l.readings != 1 {
		t.Error("the table is read again before the pause has passed")
	}
	step(l.tracked.next)
	if l.readings != 2 {
		t.Error("the table is not read again after the pause")
	}
	if s := l.Status(); s.Limited != nil {
		t.Errorf("limited are %v, none is beyond the limit", s.Limited)
	}
}

// Opened shows all pods with the connections that they opened, also pods below the limit. It does
// not read the table on each call.
func TestOpenedShowsAllPods(t *testing.T) {
	l := newLab(t, 1000)
	opened := func() (all []Usage) {
		t.Helper()
		l.node.Run(t, func() (err error) {
			all, err = l.Opened()
			return err
		})
		return all
	}
	l.look()
	if got := opened(); got != nil {
		t.Errorf("idle: %v", got)
	}
	l.open(addrsOf(1)[0], 3)
	l.open(addrsOf(1)[1], 4)
	l.open(addrsOf(2)[1], 9)
	if got := opened(); got != nil {
		t.Errorf("within %v of a reading: %v, want what was read", shownFor, got)
	}
	l.tracked.at, l.tracked.next = time.Time{}, time.Time{}
	if got := opened(); !slices.Equal(got, []Usage{{"shop/two", 9}, {"shop/one", 7}}) {
		t.Errorf("%v", got)
	}
}

// BenchmarkReading measures a reading of a table with 50,000 entries.
func BenchmarkReading(b *testing.B) {
	const entries = 50_000
	ns := nettest.NewNS(b)
	fill(b, ns, entries)
	t := &tracked{}
	defer t.close()
	for b.Loop() {
		ns.Run(b, func() error {
			opened, err := t.read(time.Now())
			if len(opened) != 1 {
				b.Errorf("%d addresses", len(opened))
			}
			return err
		})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/entries, "ns/entry")
}

// fill adds entries connections of one client to the table of conntrack.
func fill(b *testing.B, ns *nettest.NS, entries int) {
	b.Helper()
	ns.Run(b, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		var opened []nl.Opened
		for i := range entries {
			opened = append(opened, nl.Opened{
				Client: netip.AddrPortFrom(addrsOf(1)[0], uint16(10000+i)),
				Server: netip.AddrPortFrom(server[0], 80)})
		}
		return nl.TrackOpened(c, opened)
	})
}
