package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// Peers without an endpoint do not use the budget of handshakes, regardless of why a handshake is
// needed.
func TestPeerWithoutAnEndpointTakesNoBudget(t *testing.T) {
	d := emptyDevice(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.newPeer(noise.PublicKey{1})
	errtest.Must(t, err)
	p.keepalive = time.Second
	d.mu.up = true
	now := d.now()
	full := d.mu.budget
	p.wanted = true
	for _, a := range []action{doInitiate, doRetry, doGreet, doKeepalive, doConfirm} {
		d.act(p, a, now, 0)
	}
	d.requestHandshake(p, now)
	if d.mu.budget != full {
		t.Errorf("the budget is %+v, before %+v", d.mu.budget, full)
	}
	if p.wanted || p.timers.retransmit != 0 {
		t.Error("it waits for a handshake that cannot begin")
	}

	p.endpoint.Store(&sock.Endpoint{Addr: netip.MustParseAddrPort("198.18.0.9:9")})
	d.requestHandshake(p, now)
	if d.mu.budget == full {
		t.Error("a peer with an endpoint takes nothing from the budget")
	}
}

// The timestamps for one peer grow strictly. With many peers, the timestamps still do not run ahead
// of the clock.
func TestTimestampsGrowPerPeer(t *testing.T) {
	d := emptyDevice(t)
	d.mu.Lock()
	for range 10000 {
		d.stamp(&peer{})
	}
	d.mu.Unlock()
	if ahead := noise.Stamp(time.Now().Add(time.Second), noise.Timestamp{}); !ahead.After(
		d.LastStamp()) {
		t.Error("the timestamps of ten thousand peers are a second ahead of the clock")
	}

	far := noise.Stamp(time.Now().Add(time.Hour), noise.Timestamp{})
	d.StampsAfter(far)
	d.StampsAfter(noise.Timestamp{1})
	d.mu.Lock()
	one, other := &peer{}, &peer{}
	one.lastStamp = d.stamp(one)
	again, of := d.stamp(one), d.stamp(other)
	d.mu.Unlock()
	if !one.lastStamp.After(far) || !again.After(one.lastStamp) || !of.After(far) ||
		!d.LastStamp().After(far) {
		t.Error("a timestamp is not later than what it has to be later than")
	}
}
