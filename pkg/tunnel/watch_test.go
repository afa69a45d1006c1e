package tunnel_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// A Manager that compares readings finds what one that compares all peers with the Spec finds,
// which is the oracle.
func TestWatchOfReadingsFindsWhatDiffFinds(t *testing.T) {
	key := newKey(t)
	found, settled := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		clock := at()
		now := func() time.Time { return clock }
		fakes := []*tunneltest.Fake{{}, {}}
		m, oracle := tunnel.NewManager(fakes[0], now), tunnel.NewManager(fakes[1], now)
		want := spec(key)
		for step := range 20 {
			seconds := rapid.IntRange(0, 100).Draw(t, "seconds")
			clock = clock.Add(time.Duration(seconds) * time.Second)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				want.Devices = slices.Clone(want.Devices)
				want.Devices[0].Peers = genPeers(t)
			case 1:
				edit := drawEdit(t, clock)
				for _, f := range fakes {
					f.Edit("veil0", edit)
				}
			case 2:
				_, _ = m.Status(context.Background())
			}

			oracle.Unsettle()
			differs, err := m.Watch(context.Background())
			wantDiffers, wantErr := oracle.Watch(context.Background())
			if err != nil || wantErr != nil || differs != wantDiffers {
				t.Fatalf("step %d: differs %t, want %t (%v, %v)", step, differs, wantDiffers, err,
					wantErr)
			}
			if differs {
				found++
			} else if m.Settled() {
				settled++
			}
			for _, m := range []*tunnel.Manager{m, oracle} {
				// A Spec may be invalid. It then changes nothing.
				_, _ = m.Sync(context.Background(), want)
			}
		}
	})
	if found == 0 || settled == 0 {
		t.Errorf("%d readings differ, and %d are settled: the test shows nothing", found, settled)
	}
}

// drawEdit returns a change of a device by another program, or by traffic. It concerns the same
// peer in any order of peers.
func drawEdit(t *rapid.T, clock time.Time) func(*tunnel.DeviceState) {
	what := rapid.IntRange(0, 9).Draw(t, "edit")
	rank := rapid.IntRange(0, 5).Draw(t, "peer")
	moved := ep(rapid.IntRange(0, 3).Draw(t, "endpoint"))
	return func(d *tunnel.DeviceState) {
		if what == 0 {
			d.ListenPort++
			return
		}
		keys := make([]wgkey.Public, 0, len(d.Peers))
		for _, p := range d.Peers {
			keys = append(keys, p.PublicKey)
		}
		slices.SortFunc(keys, func(a, b wgkey.Public) int { return slices.Compare(a[:], b[:]) })
		if rank >= len(keys) {
			slices.Reverse(d.Peers)
			return
		}

		at := slices.IndexFunc(d.Peers,
			func(p tunnel.PeerState) bool { return p.PublicKey == keys[rank] })
		p := &d.Peers[at]
		switch what {
		case 1:
			p.AllowedIPs = nil
		case 2:
			p.HasPreshared = true
		case 3:
			p.Keepalive += time.Second
		case 4:
			p.Endpoint = moved
		case 5:
			p.PublicKey = pub(99)
		case 6:
			d.Peers = slices.Delete(d.Peers, at, at+1)
		default:
			p.Received, p.LastHandshake = p.Received+100, clock
		}
	}
}

// Traffic alone does not make a Manager compare all peers again.
func TestCountersLeaveAReadingSettled(t *testing.T) {
	f, m, want := synced(t, 100)
	for range 2 {
		if differs, err := m.Watch(t.Context()); differs || err != nil {
			t.Fatal(differs, err)
		}
	}
	f.Edit("veil0", func(d *tunnel.DeviceState) { d.Peers[50].Sent += 1000 })
	if _, err := m.Status(t.Context()); err != nil || !m.Settled() {
		t.Errorf("settled: %t, %v", m.Settled(), err)
	}
	want = withEndpoint(want, 50, ep(9))
	mustSync(t, m, want)
	for range 2 {
		if differs, err := m.Watch(t.Context()); differs || err != nil || !m.Settled() {
			t.Fatal(differs, err)
		}
	}
	f.Edit("veil0", func(d *tunnel.DeviceState) { d.Peers[50].Endpoint = ep(8) })
	if _, err := m.Status(t.Context()); err != nil || m.Settled() {
		t.Errorf("settled with a peer that moved: %t, %v", m.Settled(), err)
	}
}

// BenchmarkWatchOfManyPeers measures a Watch of 10,000 peers of which nothing but counters changed.
// The fake's reading is part of it, and measured beside it.
func BenchmarkWatchOfManyPeers(b *testing.B) {
	f := &tunneltest.Fake{}
	m := tunnel.NewManager(f, at)
	errtest.Must(b, errtest.Of(m.Sync(b.Context(), manyPeers(newKey(b), 10000))))
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			errtest.Must(b, errtest.Of(f.Read(b.Context())))
		}
	})
	for name, before := range map[string]func(){"settled": func() {}, "compared": m.Unsettle} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before()
				if differs, err := m.Watch(b.Context()); differs || err != nil {
					b.Fatal(differs, err)
				}
			}
		})
	}
}
