package wgdevice_test

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func TestThousandPeers(t *testing.T) {
	n := newNode(t, 1, ipv4)
	n.startWorker()
	n.mustSync(n.spec())
	want := n.spec()
	elsewhere := netip.MustParseAddr("198.18.0.9")

	for i := range 1000 {
		k, err := wgkey.Generate()
		errtest.Must(t, err)
		base := netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		// Without endpoints no peer is greeted: none could answer.
		want.Devices[0].Peers = append(want.Devices[0].Peers, tunnel.Peer{
			Name: "node", PublicKey: k.Public(),
			AllowedIPs: []netip.Prefix{
				netip.PrefixFrom(base, 32),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x42, 2: byte(i >> 8),
					3: byte(i)}), 64),
			},
		})
	}

	began := time.Now()
	n.mustSync(want)
	t.Logf("1000 peers: %s", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("1000 peers took %s", took)
	}
	if c := n.mustSync(want); !c.Empty() {
		t.Fatalf("second sync: %d changes", len(c.Configure))
	}

	var took []time.Duration
	for i := range 5 {
		changed := want.Devices[0]
		changed.Peers = slices.Clone(changed.Peers)
		changed.Peers[500].Endpoint = netip.AddrPortFrom(elsewhere, uint16(1000+i))
		want.Devices = []tunnel.Device{changed}
		var c tunnel.Changes
		n.Run(t, func() (err error) {
			began = time.Now()
			c, err = n.m.Sync(t.Context(), want)
			took = append(took, time.Since(began).Round(100*time.Microsecond))
			return err
		})
		if len(c.Configure) != 1 || len(c.Configure[0].Peers) != 1 {
			t.Fatalf("changes %+v, want one peer", c.Configure)
		}
	}

	t.Logf("one changed peer of 1000: %s", took)
	if slices.Min(took) > 500*time.Millisecond {
		t.Errorf("one changed peer took %s", took)
	}
	if c := n.mustSync(want); !c.Empty() {
		t.Fatalf("a reading afterwards finds %d changes", len(c.Configure))
	}

	pid := n.child()
	n.killChild(syscall.SIGKILL)
	nettest.Until(t, recovery, "a new process", func() bool {
		p := n.child()
		return p != 0 && p != pid
	})
	began = time.Now()
	nettest.Until(t, recovery, "all peers after the kill", func() bool {
		var peers int
		n.Do(func() error {
			st, err := n.host.Read(t.Context())
			if err == nil && len(st.Devices) == 1 {
				peers = len(st.Devices[0].Peers)
			}
			return err
		})
		return peers == 1000
	})

	t.Logf("1000 peers back after %s", time.Since(began).Round(time.Millisecond))
}

// A host that reads only what changed has the state that a first reading has: after traffic,
// changes by another program, and with another process of the device.
func TestReadingOfChangesIsLikeAWholeReading(t *testing.T) {
	wg := nettest.NeedProgram(t, "wg")
	a, b := pair(t, ipv4)
	port := 4000
	traffic := func() {
		port++
		arrivals, stop := stream(t, a, b, port)
		flows(t, "traffic", arrivals, time.Time{})
		stop()
	}

	for _, step := range []struct {
		name string
		do   func()
	}{
		{"traffic", traffic},
		{"another program", func() {
			a.Exec(t, wg, "set", device, "peer", b.key.Public().String(), "persistent-keepalive",
				"7")
		}},
		{"another process", func() {
			pid := a.child()
			a.killChild(syscall.SIGKILL)
			nettest.Until(t, recovery, "a new process", func() bool {
				p := a.child()
				return p != 0 && p != pid
			})
			traffic()
		}},
		{"a peer removed", func() { a.mustSync(a.spec()) }},
	} {
		step.do()
		var got, want tunnel.LiveState
		nettest.Until(t, 20*time.Second, "equal readings after "+step.name, func() bool {
			fresh, err := wgdevice.NewHost(wgdevice.HostConfig{Mode: wgdevice.ModeUserspace})
			errtest.Must(t, err)
			got, want = a.read(a.host), a.read(fresh)
			return reflect.DeepEqual(got, want)
		})
	}
}

func TestDeviceRemovedByHandComesBack(t *testing.T) {
	a, b := pair(t, ipv4)
	b.OnLink(device, func(h *nl.Handle, l nl.Link) error { return h.LinkDel(l) })

	nettest.Until(t, 5*time.Second, "the device, served again", func() bool {
		served := false
		b.Do(func() error {
			st, err := b.host.Read(t.Context())
			served = err == nil && len(st.Devices) == 1 && st.Devices[0].Served
			return err
		})
		return served
	})

	if c := b.mustSync(b.spec(a)); !c.Empty() {
		t.Errorf("changes after the device came back: %+v", c)
	}

	b.route(a)
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic", arrivals, time.Time{})
}

func TestForeignLinkIsLeftAlone(t *testing.T) {
	n := newNode(t, 1, ipv4)
	nettest.Veth(t, nettest.End{NS: n.NS, Name: device}, nettest.End{NS: n.NS, Name: "other"})
	if _, err := n.sync(n.spec()); err == nil || !strings.Contains(err.Error(), "is of type veth") {
		t.Errorf("sync: %v, want a refusal", err)
	}
	n.Run(t, func() error {
		if took, err := n.host.RemoveAll(t.Context()); err != nil || len(took) > 0 {
			t.Errorf("took %q, %v", took, err)
		}
		return nl.OnLink(device, func(*nl.Handle, nl.Link) error { return nil })
	})
}

// TestNarrowUnderlayIsFound: the underlay silently drops packets longer than 1394 bytes (a veth
// takes 4 more than its MTU); the device assumes 1500. Inside the tunnel 1394-60 = 1334 bytes fit,
// and 1328 is the largest multiple of 16, to which WireGuard pads.
func TestNarrowUnderlayIsFound(t *testing.T) {
	a, b := pair(t, ipv4)
	var found atomic.Int64
	ctx, stop := context.WithCancel(t.Context())

	var wg sync.WaitGroup
	for _, n := range []*testNode{a, b} {
		other := a
		if n == a {
			other = b
		}
		p := pathmtu.New(pathmtu.ProberConfig{
			Sources: []netip.Addr{n.inner.Addr()}, Timeout: 100 * time.Millisecond,
			Log: slog.New(slog.DiscardHandler),
			Timing: pathmtu.Timing{Interval: 300 * time.Millisecond, RaiseInterval: time.Minute,
				RetryMin: 50 * time.Millisecond, Tries: 3},
			Found: func(_ pathmtu.Peer, mtu int) {
				if n == a {
					found.Store(int64(mtu))
				}
			},
		})
		p.SetPeers([]pathmtu.Peer{{Name: "other", Device: device, Addr: other.inner.Addr(),
			DeviceMTU: 1440}})
		wg.Go(func() { n.NS.Do(func() error { return p.Run(ctx) }) })
	}

	t.Cleanup(wg.Wait)
	t.Cleanup(stop)
	b.OnLink("eth0", func(h *nl.Handle, l nl.Link) error { return h.LinkSetMTU(l, 1390) })

	nettest.Until(t, 20*time.Second, "an mtu of 1328", func() bool { return found.Load() == 1328 })
}
