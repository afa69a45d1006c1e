package guard

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// TestRoutesThatEncapsulateCarryNothingOut sends packets by routes with encapsulation. Such a
// packet leaves behind netfilter's last hook, so only the programs at links protect.
func TestRoutesThatEncapsulateCarryNothingOut(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	for _, c := range []struct {
		name, to, encap string
		reason          string
	}{
		{"seg6, IPv6", "fd42:1:0:2::/64", "seg6 mode encap segs fd42:9::2", "inner_dst_in_range"},
		{"seg6, IPv4", "198.18.2.0/24", "seg6 mode encap segs fd42:9::2", "inner_dst_in_range"},
		{"seg6, two segments", "fd42:1:0:2::/64", "seg6 mode encap segs fd42:9::2,fd42:9::3",
			"inner_dst_in_range"},
		{"seg6, inline", "fd42:1:0:2::/64", "seg6 mode inline segs fd42:9::2", "routed_by_range"},
		{"ioam6", "fd42:1:0:2::/64",
			"ioam6 mode encap tundst fd42:9::2 trace prealloc type 0x800000 ns 0 size 12",
			"inner_dst_in_range"},
		{"rpl", "fd42:1:0:2::/64", "rpl segs fd42:9::2", "routed_by_range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothHooks(t, func(t *testing.T, hk hooks) {
				n := newNode(t, hk)
				n.encapsulate(t, c.to, c.encap)
				to := "fd42:1:0:2::9"
				if strings.Contains(c.to, ".") {
					to = "198.18.2.9"
				}

				n.loses(t, "a host's packet", c.reason, n, to, 0)
				n.loses(t, "a pod's packet", "pod_to_node", n, to, abi.PodMark)
			})
		})
	}
}

// TestRoutesThatEncapsulateServeHosts is the control: packets without addresses of the cluster
// leave by such routes.
func TestRoutesThatEncapsulateServeHosts(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	n := newNode(t, clsact)
	n.encapsulate(t, "fd42:8::/64", "seg6 mode encap segs fd42:9::2")
	in := packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
	// The packet is sent repeatedly. The first may be lost while duplicate address detection of the
	// neighbour is not finished.
	nettest.Until(t, patience, "a host's packet leaves in a segment route", func() bool {
		errtest.Must(t, udp(n, "", "fd42:8::1", 0))
		return received(in, []byte("kubeveil"))
	})
}

// encapsulate makes a route by u0 of the host, and skips the test if the kernel lacks such routes.
func (n *node) encapsulate(t *testing.T, to, encap string) {
	t.Helper()
	args := append([]string{"route", "add", to, "encap"}, strings.Fields(encap)...)
	args = append(args, "via", "inet6", "fd42:9::2", "dev", "u0")
	err := n.Do(func() error { return nettest.Command("ip", args...) })
	if err == nil {
		return
	}
	kind, _, _ := strings.Cut(encap, " ")
	lacks, optional := map[string]nettest.Reason{"ioam6": nettest.NoIOAM6,
		"rpl": nettest.NoRPL}[kind]
	if !optional {
		t.Fatal(err)
	}
	nettest.Skip(t, lacks, err.Error())
}

// TestTunnelsOfIPsecCarryNothingOut uses IPsec tunnels without encryption, which carry clear text.
func TestTunnelsOfIPsecCarryNothingOut(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	bothHooks(t, func(t *testing.T, hk hooks) {
		for _, c := range []struct{ to, pod, here, there string }{
			{"198.18.2.0/24", "198.18.2.9", "198.19.0.1", "198.19.0.2"},
			{"fd42:1:0:2::/64", "fd42:1:0:2::9", "fd42:9::1", "fd42:9::2"},
		} {
			n := newNode(t, hk)
			tunnel := []string{"src", c.here, "dst", c.there, "proto", "esp", "spi", "0x77"}
			n.needXFRM(t, append([]string{"state", "add"}, append(tunnel, "mode", "tunnel",
				"auth", "digest_null", "", "enc", "cipher_null", "")...))
			n.Run(t, func() error {
				policy := []string{"xfrm", "policy", "add", "dst", c.to, "dir", "out", "tmpl"}
				return errors.Join(
					nettest.Command("ip", "route", "add", c.to, "via", c.there, "dev", "u0"),
					nettest.Command("ip", append(policy, append(tunnel[:6], "mode", "tunnel")...)...))
			})
			n.loses(t, "a host's packet to "+c.pod, "dst_in_range", n, c.pod, 0)
			n.loses(t, "a pod's packet to "+c.pod, "pod_to_range", n, c.pod, abi.PodMark)
		}
	})
}

// needXFRM runs ip xfrm, and skips the test if the kernel has no IPsec.
func (n *node) needXFRM(t *testing.T, args []string) {
	t.Helper()
	if err := n.Do(func() error {
		return nettest.Command("ip", append([]string{"xfrm"}, args...)...)
	}); err != nil {
		nettest.Skip(t, nettest.NoESP, err.Error())
	}
}
