package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestPodPacketsOnTheUnderlay sends packets from a pod to destinations of every kind, and captures
// the underlay. nft sets the mark that the guard would set on packets of pods.
//
//	pod eth0 ── vpod0 (mark) node under0 ── router0 (captured)
func TestPodPacketsOnTheUnderlay(t *testing.T) {
	nettest.NeedProgram(t, "nft")
	l := newLab(t)
	pod := nettest.NewNS(t)
	nettest.Veth(t,
		nettest.End{NS: l.ns, Name: "vpod0",
			Addrs: prefixes("198.18.129.1/24", "fd42:aaaa:0:1::1/64")},
		nettest.End{NS: pod, Name: "eth0",
			Addrs: prefixes("198.18.129.5/24", "fd42:aaaa:0:1::5/64")})
	nettest.AddRoute(t, pod, netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParseAddr("198.18.129.1"), "eth0")
	nettest.AddRoute(t, pod, netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd42:aaaa:0:1::1"),
		"eth0")
	l.shell(`
			ip link set vpod0 group 0x7670
			nft add table inet marker
			nft add chain inet marker pre '{ type filter hook prerouting priority -300; }'
			nft add rule inet marker pre iifname vpod0 meta mark set 0x100000`)
	l.apply(dual())
	capture := nettest.NewCapture(t, l.ns, nettest.SnifferOptions{Link: "under0"})

	inside := addrs("198.18.130.9", "fd42:aaaa:0:2::9", "198.18.200.9", "fd42:aaaa:0:99::9",
		"198.18.0.2", "fd42:0:0:1::2",
		"198.18.0.4", "fd42:0:0:1::4", "198.19.0.1", "fd42:bbbb::1")
	outside := addrs("198.18.5.5", "fd42:9::1")
	send := func(to netip.Addr, payload string) {
		pod.Run(t, func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(payload))
			if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) {
				err = nil
			}
			return err
		})
	}
	for _, to := range inside {
		send(to, "cluster canary")
	}
	// The pod's own kernel routes no packet to the unspecified address. A raw socket does not need
	// its routes.
	var node *net.Interface
	l.ns.Run(t, func() (err error) { node, err = net.InterfaceByName("vpod0"); return err })
	pod.Run(t, func() error {
		return nettest.SendFrames("eth0", raw6(node.HardwareAddr, "::", "cluster canary"),
			raw6(node.HardwareAddr, "fd42:9::1", "raw control"))
	})
	for _, to := range outside {
		send(to, "egress canary")
	}
	sources := func() map[string]bool {
		seen := map[string]bool{}
		for _, f := range capture.Frames() {
			if f.Outgoing && strings.HasSuffix(string(f.Data), "egress canary") {
				seen[sourceOf(f.Data)] = true
			}
		}
		return seen
	}
	nettest.Until(t, 5*time.Second, "both egress packets leave",
		func() bool { return len(sources()) == 2 })
	nettest.Until(t, 5*time.Second, "the raw packet to the outside leaves", func() bool {
		return slices.ContainsFunc(capture.Frames(), func(f nettest.Frame) bool {
			return f.Outgoing && strings.HasSuffix(string(f.Data), "raw control")
		})
	})
	for _, f := range capture.All(t) {
		if strings.Contains(string(f.Data), "cluster canary") {
			t.Errorf("cluster traffic left in clear: % x", f.Data)
		}
	}
	if seen := sources(); !seen["198.18.0.1"] || !seen["fd42:0:0:1::1"] {
		t.Errorf("egress left from %v, want the node's addresses", seen)
	}
}

// raw6 returns a frame of the pod with an IPv6 packet of protocol 253, which is for experiments
// (RFC 3692).
func raw6(to net.HardwareAddr, dst, payload string) []byte {
	src, end := netip.MustParseAddr("fd42:aaaa:0:1::5").As16(), netip.MustParseAddr(dst).As16()
	header := []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(payload)), 253, 64}
	return slices.Concat(to, []byte{2, 0, 0, 0, 0, 5}, header, src[:], end[:], []byte(payload))
}

// sourceOf returns the source address of an Ethernet frame with IP in it.
func sourceOf(frame []byte) string {
	a, size := 14+12, 4
	if frame[12] == 0x86 {
		a, size = 14+8, 16
	}
	addr, _ := netip.AddrFromSlice(frame[a:][:size])
	return addr.String()
}

func TestSyncReadsOnlyWhenItMust(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	l := newLab(t)
	l.sync(dual())
	l.assertIs(dual())
	del := func() {
		l.ns.Run(t, func() error {
			return exec.Command("ip", "route", "del", "198.18.130.0/24", "table", "30309").Run()
		})
	}
	del()
	if ops := l.sync(dual()); len(ops) != 0 {
		t.Errorf("sync without Forget did %s", ops)
	}

	l.host.Forget()
	if ops := l.sync(dual()); len(ops) != 1 {
		t.Errorf("sync after Forget did %s, want one op", ops)
	}

	w := dual()
	w.Devices[0].MTU = 1410
	w.Devices = append(w.Devices, TunnelDevice{Name: "veil1"})
	l.sync(w)
	if ops := l.sync(w); len(ops) != 0 {
		t.Errorf("second sync did %s", ops)
	}

	l.assertIs(w)
	l.host.inject = func(Op) error { return errors.New("boom") }
	if err := l.ns.Do(func() error {
		_, err := l.host.Sync(Plan(dual()))
		return err
	}); err == nil {
		t.Error("sync with a failing op gave no error")
	}

	l.host.inject = nil
	l.sync(dual())
	l.assertIs(dual())
}

func TestForwardingKeepsRouterAdvertisements(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	l := newLab(t)
	nettest.Sysctl(t, l.ns, forward6Path, "0")
	nettest.Sysctl(t, l.ns, acceptRAPath("under0"), "1")
	nettest.Sysctl(t, l.ns, acceptRAPath("veil1"), "1")
	l.ns.Run(t, func() error {
		return exec.Command("ip", "-6", "route", "add", "default", "via", "fd42:0:0:1::fd", "dev",
			"under0", "proto", "ra", "metric", "2000").Run()
	})
	l.apply(dual())
	for path, want := range map[string]string{forward6Path: "1", forward4Path: "1",
		acceptRAPath("under0"): "2", acceptRAPath("veil1"): "1"} {
		if got := nettest.ReadSysctl(t, l.ns, path); got != want {
			t.Errorf("%s = %s, want %s", path, got, want)
		}
	}
}

func TestSyncWantPlansOnlyWhatIsNew(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	l := newLab(t)
	syncWant := func(w Want) (ops []Op) {
		t.Helper()
		l.ns.Run(t, func() (err error) {
			ops, err = l.host.SyncWant(w)
			return err
		})
		return ops
	}

	syncWant(manyPeers(100))
	again := manyPeers(100)
	if allocated := testing.AllocsPerRun(1, func() { syncWant(again) }); allocated > 50 {
		t.Errorf("to want the same again allocates %.0f times", allocated)
	}

	again.Peers[3].MTU = 1300
	if ops := syncWant(again); len(ops) == 0 {
		t.Error("another MTU changed nothing")
	}

	l.ns.Run(t, func() error {
		return exec.Command("ip", "route", "flush", "table", "30309", "metric", "1024").Run()
	})
	l.host.Forget()
	if ops := syncWant(again); len(ops) < 100 {
		t.Errorf("after Forget %d ops, want the routes of a hundred peers", len(ops))
	}

	l.host.inject = func(Op) error { return errors.New("boom") }
	fewer := manyPeers(99)
	if err := l.ns.Do(func() error { _, err := l.host.SyncWant(fewer); return err }); err == nil {
		t.Error("a failing op gave no error")
	}

	l.host.inject = nil
	if ops := syncWant(fewer); len(ops) == 0 {
		t.Error("what failed was not done by the next")
	}

	l.assertIs(fewer)
}
