package reach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// The kernel of a peer answers echoes of both families. A peer whose link is down is dead, and
// alive again after an answer.
func TestKernelAnswersEchoes(t *testing.T) {
	here, there := nettest.NewNS(t), nettest.NewNS(t)
	for _, ns := range []*nettest.NS{here, there} {
		nettest.Sysctl(t, ns, "ipv6/conf/default/accept_dad", "0")
	}
	nettest.Veth(t, nettest.End{NS: here, Name: "v0",
		Addrs: nettest.Prefixes("198.18.0.1/24", "fd42::1/64")}, nettest.End{NS: there, Name: "v0",
		Addrs: nettest.Prefixes("198.18.0.2/24", "fd42::2/64")})

	changes := make(chan struct{}, 100)
	p := New(Config{Sources: nettest.Addrs("198.18.0.1", "fd42::1"), Read: func(context.Context) {},
		Heard:   func(Peer) time.Time { return time.Time{} },
		Changed: func() { changes <- struct{}{} }, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { p.closeSockets(); p.readers.Wait() })
	peers := []Peer{{"four", "v0", netip.MustParseAddr("198.18.0.2")},
		{"six", "v0", netip.MustParseAddr("fd42::2")}}
	p.SetPeers(peers)
	tick := func() { here.Run(t, func() error { p.tick(t.Context()); return nil }) }
	answered := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.targets[peers[0]].waiting && !p.targets[peers[1]].waiting
	}
	for range 3 {
		tick()
		polls := 0
		nettest.Until(t, 10*time.Second, "both answer", func() bool {
			if polls++; polls%100 == 0 {
				tick() // an echo can be lost
			}
			return answered()
		})
	}
	here.Run(t, func() error {
		if groups, err := sysctl.Read(groupRange); err != nil || groups != "0\t0" {
			t.Errorf("groups are %q, %v", groups, err)
		}
		return nil
	})

	there.Run(t, func() error { return nettest.Command("ip", "link", "set", "v0", "down") })
	nettest.Until(t, 10*time.Second, "both are dead", func() bool {
		tick()
		return len(p.Dead()) == 2
	})
	<-changes
	p.SetPeers(peers[:1])
	if dead := p.Dead(); len(dead) != 1 || dead[0] != "four" {
		t.Errorf("dead are %q", dead)
	}
	there.Run(t, func() error { return nettest.Command("ip", "link", "set", "v0", "up") })
	nettest.Until(t, 10*time.Second, "it answers again", func() bool {
		tick()
		return len(p.Dead()) == 0
	})
}

// Another family, or a device that does not exist, costs its peer only.
func TestUnusableDeviceCostsItsPeer(t *testing.T) {
	here := nettest.NewNS(t)
	p := New(Config{Sources: nettest.Addrs("198.18.0.1"), Read: func(context.Context) {},
		Heard: func(Peer) time.Time { return time.Time{} }, Changed: func() {},
		Log: slog.New(slog.DiscardHandler)})
	p.SetPeers([]Peer{{"six", "lo", netip.MustParseAddr("::1")},
		{"gone", "v0", netip.MustParseAddr("198.18.0.2")}})
	for range 4 {
		here.Run(t, func() error { p.tick(t.Context()); return nil })
	}
	if dead := p.Dead(); len(dead) != 2 {
		t.Errorf("dead are %q", dead)
	}
}

// Where the kernel permits no echoes, no peer is dead, and there is a problem with a remedy. Once it
// permits them, peers are judged again.
func TestForbiddenEchoesKillNoPeer(t *testing.T) {
	here := nettest.NewNS(t)
	nettest.Sysctl(t, here, groupRange, "5000 5000")
	here.Run(t, func() error { return nettest.Command("ip", "link", "set", "lo", "down") })
	changes := 0
	p := New(Config{Sources: nettest.Addrs("127.0.0.1"), Read: func(context.Context) {},
		Heard: func(Peer) time.Time { return time.Time{} }, Changed: func() { changes++ },
		Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { p.closeSockets(); p.readers.Wait() })
	p.SetPeers([]Peer{{"b/node-1", "lo", netip.MustParseAddr("127.0.0.2")}})
	ticks := func() {
		for range 2 * mostMissed {
			here.Run(t, func() error { p.tick(t.Context()); return nil })
		}
	}
	ticks()
	if dead, err := p.Dead(), p.Problem(); len(dead) > 0 || !errors.Is(err, unix.EACCES) ||
		!strings.Contains(err.Error(), "ping_group_range") || changes != 1 {
		t.Errorf("dead are %q, %d changes, problem %v", dead, changes, err)
	}

	nettest.Sysctl(t, here, groupRange, "0 0")
	ticks()
	if dead, err := p.Dead(), p.Problem(); len(dead) != 1 || err != nil || changes != 3 {
		t.Errorf("dead are %q, %d changes, problem %v", dead, changes, err)
	}
}

// An echo that a firewall refuses is an echo without an answer.
func TestRefusedEchoForbidsNoSocket(t *testing.T) {
	here := nettest.NewNS(t)
	nettest.Sysctl(t, here, groupRange, "0 0")
	here.Run(t, func() error {
		return nettest.Command("nft", "add table ip t; add chain ip t out "+
			"{ type filter hook output priority 0; policy drop; }")
	})
	p := New(Config{Sources: nettest.Addrs("127.0.0.1"), Read: func(context.Context) {},
		Heard: func(Peer) time.Time { return time.Time{} }, Changed: func() {},
		Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { p.closeSockets(); p.readers.Wait() })
	p.SetPeers([]Peer{{"b/node-1", "lo", netip.MustParseAddr("127.0.0.2")}})
	for range 2 * mostMissed {
		here.Run(t, func() error { p.tick(t.Context()); return nil })
	}
	if dead, err := p.Dead(), p.Problem(); len(dead) != 1 || err != nil ||
		!strings.Contains(p.failed, unix.EPERM.Error()) {
		t.Errorf("dead are %q, problem %v, last error %q", dead, err, p.failed)
	}
}

// Nodes that die and answer in turns cause one change for each tick.
func TestChangesAreReportedOncePerTick(t *testing.T) {
	here := nettest.NewNS(t)
	changes := 0
	p := New(Config{Read: func(context.Context) {},
		Heard: func(Peer) time.Time { return time.Time{} }, Changed: func() { changes++ },
		Log: slog.New(slog.DiscardHandler)})
	var peers []Peer
	for i := range 10 {
		peers = append(peers, Peer{fmt.Sprint("b/node-", i), "v0",
			netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})})
	}
	p.SetPeers(peers)

	tick := func() { here.Run(t, func() error { p.tick(t.Context()); return nil }) }
	for range 1 + mostMissed {
		tick()
	}
	if len(p.Dead()) != len(peers) || changes != 1 {
		t.Fatalf("%d are dead, %d changes", len(p.Dead()), changes)
	}
	for i, peer := range peers {
		p.receive(peer.Device, peer.Addr, p.targets[peer].seq)
		if n := len(p.Dead()); n != len(peers)-1-i || changes != 1 {
			t.Errorf("%d are dead, %d changes", n, changes)
		}
	}
	if tick(); changes != 2 {
		t.Errorf("%d changes after the tick", changes)
	}
}
