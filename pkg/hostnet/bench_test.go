package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// manyPeers returns the Want of a dual-stack cluster of n peers.
func manyPeers(n int) Want {
	w := dual()
	w.ClusterRanges = prefixes("198.18.128.0/17", "fd42:aaaa::/32")
	w.Peers, w.NodeAddrs = nil, nil
	for i := range n {
		p := Peer{
			Name: fmt.Sprintf("node-%d", i), Devices: []string{"veil0"},
			PodPrefixes: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(128 + i/16),
					byte(i % 16 * 16)}), 28),
				netip.MustParsePrefix(fmt.Sprintf("fd42:aaaa:0:%x::/64", i)),
			},
			NodeAddrs: []netip.Addr{
				netip.AddrFrom4([4]byte{198, 18, byte(10 + i/200), byte(i % 200)}),
				netip.MustParseAddr(fmt.Sprintf("fd42:0:0:2::%x", i)),
			},
		}
		w.Peers = append(w.Peers, p)
		w.NodeAddrs = append(w.NodeAddrs, p.NodeAddrs...)
	}
	return w
}

// BenchmarkThousandPeers measures what the agent does with a table of a thousand
// dual-stack peers.
func BenchmarkThousandPeers(b *testing.B) {
	w := manyPeers(1000)
	changed := manyPeers(1000)
	changed.Peers = slices.Clone(changed.Peers)
	changed.Peers[500].MTU = 1300
	l := newLab(b)
	var program, read, one time.Duration
	b.ResetTimer()
	for b.Loop() {
		start := time.Now()
		l.apply(w)
		program += time.Since(start)

		start = time.Now()
		l.sync(w)
		read += time.Since(start)

		start = time.Now()
		l.sync(changed)
		one += time.Since(start)
		if err := l.ns.Do(func() error { _, err := l.host.Remove(); return err }); err != nil {
			b.Fatal(err)
		}
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(ms(program), "ms/program")
	b.ReportMetric(ms(read), "ms/read")
	b.ReportMetric(ms(one), "ms/one-peer")
}

// Every turn reads the kernel's state, also for unrelated changes. So reading must be cheap also
// with many peers.
func TestReadingAThousandPeersAllocatesLittle(t *testing.T) {
	w := manyPeers(1000)
	l := newLab(t)
	l.apply(w)
	for what, tt := range map[string]struct {
		read func() error
		most float64
	}{
		"ways to a thousand nodes": {func() error {
			_, err := l.host.Underlay(w.NodeAddrs, w.SelfAddrs)
			return err
		}, 10000},
		"routes to a thousand nodes": {func() error { _, err := l.host.Read(); return err }, 10000},
	} {
		var allocated float64
		l.ns.Run(t, func() (err error) {
			allocated = testing.AllocsPerRun(1, func() { err = errors.Join(err, tt.read()) })
			return err
		})
		if t.Logf("%s: %.0f allocations", what, allocated); allocated > tt.most {
			t.Errorf("%s: %.0f allocations, want at most %.0f", what, allocated, tt.most)
		}
	}
}

// BenchmarkUnderlayOfAThousandNodes measures the cost of a turn when a link, an address or a rule
// changed.
func BenchmarkUnderlayOfAThousandNodes(b *testing.B) {
	w := manyPeers(1000)
	l := newLab(b)
	l.apply(w)
	b.ReportAllocs()
	for b.Loop() {
		if err := l.ns.Do(func() error {
			_, err := l.host.Underlay(w.NodeAddrs, w.SelfAddrs)
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}
