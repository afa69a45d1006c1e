package pathmtu

import (
	"fmt"
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

// Silent peers get one small probe each in turn, and no bursts. A search of another peer does not
// wait for them.
func TestSilentPeersShareProbes(t *testing.T) {
	const silent, span = 500, 20 * time.Minute
	began := time.Now()
	now := began
	p := New(ProberConfig{Log: slog.New(slog.DiscardHandler), Broken: func(Peer) {},
		Traffic: func(peer Peer) (Traffic, bool) {
			return Traffic{Sent: 5000, At: now, Silent: peer.Name != "b", Segments: true}, true
		}})
	peers := []Peer{{Name: "b", Device: "veil0", Addr: netip.MustParseAddr("198.18.7.2"),
		DeviceMTU: 1440}}
	for i := range silent {
		peers = append(peers, Peer{Name: fmt.Sprint(i), Device: "veil0", DeviceMTU: 1440,
			Addr: netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})})
	}
	p.SetPeers(peers)

	probes, probed := 0, map[*target]bool{}
	nonces := map[*target]uint64{}
	for end := now.Add(span); now.Before(end); now = now.Add(p.turn(now)) {
		for _, target := range p.peers {
			if target.nonce == 0 || target.nonce == nonces[target] {
				continue
			}
			nonces[target], probed[target] = target.nonce, true
			if target.Name == "b" {
				continue
			}
			probes++
			if target.search.size == target.DeviceMTU || target.burstNonce != 0 {
				t.Fatalf("a silent peer gets a probe of %d bytes, burst %v", target.search.size,
					target.burst)
			}
		}
	}
	if most := int(span/knockPause) + 2; probes > most || probes < most*9/10 {
		t.Errorf("%d probes of silent peers in %v, want about %d", probes, span, most)
	}
	if len(probed) < len(peers) {
		t.Errorf("%d of %d peers were probed", len(probed), len(peers))
	}
}

// The answer to a probe that counted as lost ends a search, and makes later waits longer.
func TestLateAnswerEndsASearch(t *testing.T) {
	addr := netip.MustParseAddr("198.18.7.2")
	p := New(ProberConfig{Log: slog.New(slog.DiscardHandler)})
	p.SetPeers([]Peer{{Name: "b", Device: "veil0", Addr: addr, DeviceMTU: 1440}})
	target, now := p.peers[peerID{"b", "veil0"}], time.Now()
	p.turn(now)
	first := target.nonce

	for target.search.phase != control {
		now = now.Add(target.timeout)
		p.turn(now)
	}
	probe := target.nonce
	p.receive(socketID{"veil0", false}, addr, message{kindAnswer, 1, 1440}, messageLen, now)
	if target.search.phase != control || target.nonce != probe {
		t.Fatal("an answer to no probe counted")
	}
	p.receive(socketID{"veil0", false}, addr, message{kindAnswer, first, 1440}, messageLen, now)
	if !target.search.Idle() || target.nonce != 0 || target.search.MTU() != 1440 {
		t.Errorf("after the late answer: %+v", *target.search)
	}
	if target.timeout != 2*p.o.Timeout {
		t.Errorf("waits %v after a late answer", target.timeout)
	}
}
