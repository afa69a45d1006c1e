package pathmtu

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"
)

// The bytes of a check with a single probe do not count as traffic, so a peer that receives no
// other packets is not probed again.
func TestCheckOfOneProbeDoesNotCountAsTraffic(t *testing.T) {
	now := time.Now()
	addr := netip.MustParseAddr("198.18.7.2")
	p := New(ProberConfig{Log: slog.New(slog.DiscardHandler),
		Traffic: func(Peer) (Traffic, bool) { return Traffic{Sent: 5000, At: now}, true }})
	p.SetPeers([]Peer{{Name: "b", Device: "veil0", Addr: addr, DeviceMTU: 1440}})
	target := p.peers[peerID{"b", "veil0"}]
	checks := 0
	for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(time.Second) {
		p.turn(now)
		if target.nonce == 0 {
			continue
		}
		checks++
		size := target.search.size
		p.receive(socketID{"veil0", false}, addr, message{kindAnswer, target.nonce, size}, messageLen,
			now)
	}
	if checks != 1 {
		t.Errorf("%d checks of a peer that was sent nothing since the first", checks)
	}
}
