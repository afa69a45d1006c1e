package engine_test

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// The source address of a peer is kept while the route to it leaves by the link on which the peer
// came in, and judged again when routes change. The peer sends all the while, and so does not bring
// a source back that was forgotten.
func TestSourceIsKeptWhileTheRouteSuitsIt(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	var link, asked atomic.Int32
	link.Store(1) // of lo, on which the peer comes in
	a.Engine.SetRoute(func(*sock.Endpoint, uint32) (int32, error) {
		asked.Add(1)
		return link.Load(), nil
	})
	enginetest.Pair(t, a, b, false, "")
	connect(t, a, b)

	back := datagram(false, false, []byte("back"))
	comes := func() {
		b.Send(t, back)
		expect(t, a, back)
	}
	source := func() netip.Addr {
		comes()
		return a.Engine.Endpoint(b.Public).Source
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	judged := func(want netip.Addr) {
		t.Helper()
		before := asked.Load()
		a.Engine.ChangePaths(sock.Change{Prefix: netip.MustParsePrefix("127.0.0.0/8")})
		nettest.Until(t, 10*time.Second, "the judgement", func() bool {
			comes()
			return asked.Load() > before && source() == want
		})
		for walk := a.Engine.LastWalk(); a.Engine.LastWalk() == walk; {
			comes()
		}
		if got := source(); got != want {
			t.Errorf("source %s, want %s", got, want)
		}
	}
	judged(loopback)

	link.Store(7)
	judged(netip.Addr{})

	before := asked.Load()
	a.Engine.ChangePaths(sock.Change{Prefix: netip.MustParsePrefix("198.18.0.0/15")},
		sock.Change{Link: 9})
	for range 3 {
		for walk := a.Engine.LastWalk(); a.Engine.LastWalk() == walk; {
			comes()
		}
	}
	if n := asked.Load() - before; n != 0 {
		t.Errorf("the route was asked for %d times after changes that are not about the peer", n)
	}

	link.Store(1)
	judged(loopback)
}
