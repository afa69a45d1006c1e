package guard

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// alone deletes all nftables rules, so that only the programs at links protect, and adds a
// masquerade of another program.
const alone = "flush ruleset; " +
	"table inet others { chain p { type nat hook postrouting priority 100; oifname u0 " +
	"masquerade; }; }"

// TestPodIsKnownByItsLink sends packets without a mark that another program masquerades. Only the
// input link shows that such a packet comes from a pod.
func TestPodIsKnownByItsLink(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		pod := n.addPod(t)
		n.Run(t, func() error { return runNFT(alone) })
		sniffer := packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
		for _, f := range podAndNode {
			n.loses(t, "a packet to "+f.node, "pod_mark_lost", pod, f.node, 0)
		}
		if received(sniffer, []byte("kubeveil")) {
			t.Error("a packet of the pod left in clear")
		}
	})
}

// TestLinkIsAPodsUntilItHasTheGuard adds links without a Watch: packets from one of them go to no
// node in clear. Once the link has the guard it is treated like a router's link.
func TestLinkIsAPodsUntilItHasTheGuard(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.addPod(t)
		n.Run(t, func() error { return runNFT(alone) })
		behind := nettest.NewNS(t)
		nettest.Veth(t,
			nettest.End{NS: n.NS, Name: "b0", Addrs: prefixes("198.19.88.1/24", "fd42:88::1/64")},
			nettest.End{NS: behind, Name: "b0", Addrs: prefixes("198.19.88.2/24", "fd42:88::2/64")})
		nettest.AddRoute(t, behind, prefixes("198.19.0.0/24")[0], addrs("198.19.88.1")[0], "b0")
		nettest.AddRoute(t, behind, prefixes("fd42:9::/64")[0], addrs("fd42:88::1")[0], "b0")
		for _, f := range podAndNode {
			n.loses(t, "a packet by a new link to "+f.node, "pod_mark_lost", behind, f.node, 0)
		}

		n.apply(t)
		for _, f := range podAndNode {
			source(t, n.peer, f.node, func() error { return udp(behind, "", f.node, 0) })
		}

		// The link becomes a pod's link again, so packets that arrive by it come from a pod.
		n.Run(t, func() error { return setGroup("b0", abi.PodGroup) })
		n.apply(t)
		n.Run(t, func() error { return runNFT(alone) })
		for _, f := range podAndNode {
			n.loses(t, "a packet by a pod's link to "+f.node, "pod_mark_lost", behind, f.node, 0)
		}
	})
}

// TestMarksOfLinksAreRepaired removes the marks of links, and adds one for a link that does not
// exist.
func TestMarksOfLinksAreRepaired(t *testing.T) {
	n := newNode(t, clsact)
	want := n.read(t).Marked
	if len(want) == 0 {
		t.Fatal("no link is marked as guarded")
	}
	for index := range want {
		errtest.Must(t, set(n.g.maps[abi.PinLinks], uint32(index), false))
	}
	errtest.Must(t, set(n.g.maps[abi.PinLinks], uint32(4711), true))
	ops := n.apply(t)
	if len(ops) != len(want)+1 || ops[0].String() != "remove guarded link 4711" {
		t.Errorf("Apply did %v", ops)
	}
	if got := n.read(t).Marked; len(got) != len(want) {
		t.Errorf("marked are %v, want %v", got, want)
	}
}
