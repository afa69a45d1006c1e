package pathmtu

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"
	"time"
)

func FuzzParse(f *testing.F) {
	f.Add(message{kindProbe, 7, 1440}.put(1412))
	f.Add(message{kindAnswer, 7, 1440}.put(messageLen))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := parse(in)
		if err != nil {
			return
		}
		again, err := parse(m.put(len(in)))
		if err != nil || again != m {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
		if m.kind == kindAnswer && len(in) != messageLen {
			t.Errorf("an answer of %d bytes", len(in))
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := message{kindProbe, 7, 1440}.put(messageLen)
	for _, tc := range []struct {
		name string
		in   []byte
	}{
		{"nothing", nil},
		{"one byte too few", good[:messageLen-1]},
		{"another magic", append([]byte("kvp2"), good[4:]...)},
		{"another kind", append([]byte("kvp1\x03"), good[5:]...)},
		{"a long answer", message{kindAnswer, 7, 1440}.put(messageLen + 1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if m, err := parse(tc.in); err == nil {
				t.Errorf("parsed %+v", m)
			}
		})
	}
}

// TestOnlyTheRightAnswerCounts lists the properties that an answer must have to be believed.
func TestOnlyTheRightAnswerCounts(t *testing.T) {
	peer := Peer{Name: "b", Device: "veil0", Addr: netip.MustParseAddr("198.18.0.2"),
		DeviceMTU: 1440}
	stranger := netip.MustParseAddr("198.18.0.3")
	for _, tc := range []struct {
		name   string
		device string
		from   netip.Addr
		m      message
		counts bool
	}{
		{"the right one", "veil0", peer.Addr, message{kindAnswer, 0, 1440}, true},
		{"by another device", "veil1", peer.Addr, message{kindAnswer, 0, 1440}, false},
		{"from another address", "veil0", stranger, message{kindAnswer, 0, 1440}, false},
		{"with another nonce", "veil0", peer.Addr, message{kindAnswer, 1, 1440}, false},
		{"for another size", "veil0", peer.Addr, message{kindAnswer, 0, 9000}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := New(ProberConfig{Log: slog.New(slog.DiscardHandler)})
			p.SetPeers([]Peer{peer})
			now := time.Now()
			p.turn(now)
			target := p.peers[peerID{"b", "veil0"}]
			tc.m.nonce ^= target.nonce
			if out := p.receive(socketID{device: tc.device}, tc.from, tc.m, messageLen,
				now); out != nil {
				t.Errorf("an answer was answered: %x", out)
			}

			if counts := target.nonce == 0; counts != tc.counts {
				t.Errorf("it counts: %v, want %v", counts, tc.counts)
			}
		})
	}
}

func TestProbeOfAnotherLengthIsNotAnswered(t *testing.T) {
	addr := netip.MustParseAddr("198.18.0.2")
	p := New(ProberConfig{Log: slog.New(slog.DiscardHandler)})
	p.SetPeers([]Peer{{Name: "b", Device: "veil0", Addr: addr, DeviceMTU: 1440}})
	m := message{kindProbe, 7, 1440}
	if out := p.receive(socketID{device: "veil0"}, addr, m, 1412, time.Now()); !bytes.Equal(out,
		message{kindAnswer, 7, 1440}.put(messageLen)) {
		t.Errorf("answer %x", out)
	}
	if out := p.receive(socketID{device: "veil0"}, addr, m, 1411, time.Now()); out != nil {
		t.Errorf("a truncated probe was answered: %x", out)
	}
}
