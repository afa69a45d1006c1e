package tunnel_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// manyPeers is a Spec of n peers.
func manyPeers(key wgkey.Private, n int) tunnel.Spec {
	s := spec(key)
	for i := range n {
		base := netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		s.Devices[0].Peers = append(s.Devices[0].Peers, peer(i, netip.PrefixFrom(base, 32)))
	}
	return s
}

// synced returns a manager after its first Sync, to a Spec of n peers.
func synced(t *testing.T, n int) (*tunneltest.Fake, *tunnel.Manager, tunnel.Spec) {
	t.Helper()
	f := &tunneltest.Fake{}
	m, want := tunnel.NewManager(f, at), manyPeers(newKey(t), n)
	mustSync(t, m, want)
	return f, m, want
}

func TestOneChangedPeerReadsAndWritesNoOther(t *testing.T) {
	f, m, want := synced(t, 1000)
	reads, calls := f.Reads(), len(f.Calls())
	for i := range 3 {
		want = withEndpoint(want, 500, ep(i))
		mustSync(t, m, want)
		if now := f.Calls()[calls+i:]; !slices.Equal(now, []string{"configure veil0 1"}) {
			t.Errorf("change %d did %q, want one peer configured", i, now)
		}
	}
	if now := f.Reads(); now != reads {
		t.Errorf("three changes read the devices %d times", now-reads)
	}
	m.Forget()
	if c := mustSync(t, m, want); !c.Empty() {
		t.Errorf("a reading afterwards finds %d changes", len(c.Configure))
	}
}

func TestWatchFindsWhatOthersChanged(t *testing.T) {
	for name, edit := range map[string]func(*tunnel.DeviceState){
		"a peer is gone": func(d *tunnel.DeviceState) { d.Peers = d.Peers[1:] },
		"a peer has another's prefix": func(d *tunnel.DeviceState) {
			d.Peers[0].AllowedIPs = nil
		},
		"another port": func(d *tunnel.DeviceState) { d.ListenPort++ },
		"a peer moved and fell silent": func(d *tunnel.DeviceState) {
			d.Peers[0].Endpoint = ep(9)
		},
		"nobody serves it any more": func(d *tunnel.DeviceState) {
			d.Served, d.Peers = false, nil
		},
		"a peer that belongs to no node": func(d *tunnel.DeviceState) {
			d.Peers = append(d.Peers, tunnel.PeerState{PublicKey: pub(99)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, m, want := synced(t, 3)
			watch := func(want bool) {
				t.Helper()
				if differs, err := m.Watch(t.Context()); err != nil || differs != want {
					t.Fatalf("watch: differs %t, %v; want %t", differs, err, want)
				}
			}

			watch(false)
			f.Edit("veil0", edit)
			watch(true)
			if c := mustSync(t, m, want); c.Empty() {
				t.Error("sync after watch changed nothing")
			}

			watch(false)
		})
	}
}

// A peer that moved stays at its new address, although the remembered handshakes are old.
func TestMemoryOfHandshakesSetsNoEndpointBack(t *testing.T) {
	f, m, want := synced(t, 3)
	moved(time.Hour, ep(9))(f)
	m.Forget()
	if _, err := m.Status(t.Context()); err != nil { // What is remembered now is a stale handshake.
		t.Fatal(err)
	}
	moved(time.Second, ep(9))(f)
	if c := mustSync(t, m, want); !c.Empty() {
		t.Errorf("set back: %+v", c.Configure)
	}
}

// A reading that began before the end of a Sync is outdated, so it does not replace the state that
// the Sync remembered.
func TestSyncNeitherWaitsForAReadingNorIsUndoneByIt(t *testing.T) {
	f, m, want := synced(t, 3)
	release := f.Hold()
	began, done := f.Reads(), make(chan error)
	go func() {
		_, err := m.Status(t.Context())
		done <- err
	}()
	nettest.Until(t, 5*time.Second, "a reading", func() bool { return f.Reads() > began })
	want = withEndpoint(want, 0, ep(9))
	want.Devices[0].Peers[0].AllowedIPs = []netip.Prefix{pfx(9)}
	mustSync(t, m, want) // It would wait for ever.
	release()
	errtest.Must(t, <-done)
	if c := mustSync(t, m, want); !c.Empty() {
		t.Errorf("configured again: %+v", c.Configure)
	}
}

func TestFailedSyncIsForgotten(t *testing.T) {
	f, m, want := synced(t, 3)
	broken := errors.New("broken")
	f.Fail("configure", broken)
	want = withEndpoint(want, 0, ep(9))
	if _, err := m.Sync(t.Context(), want); !errors.Is(err, broken) {
		t.Fatalf("sync: %v, want %v", err, broken)
	}
	f.Fail("configure", nil)
	reads := f.Reads()
	if c := mustSync(t, m, want); len(c.Configure) != 1 || f.Reads() == reads {
		t.Errorf("after a failure %d reads and %d changes, want one of each", f.Reads()-reads,
			len(c.Configure))
	}
}

// withEndpoint returns a copy of s with another endpoint of one peer.
func withEndpoint(s tunnel.Spec, peer int, e netip.AddrPort) tunnel.Spec {
	s.Devices = slices.Clone(s.Devices)
	s.Devices[0].Peers = slices.Clone(s.Devices[0].Peers)
	s.Devices[0].Peers[peer].Endpoint = e
	return s
}

func mustSync(t *testing.T, m *tunnel.Manager, want tunnel.Spec) tunnel.Changes {
	t.Helper()
	c, err := m.Sync(t.Context(), want)
	errtest.Must(t, err)
	return c
}
