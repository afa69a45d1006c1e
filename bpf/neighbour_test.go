package bpf

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// arpFor returns an ARP message of a sender about a target, with VLAN tags.
func arpFor(sender, target string, tags ...uint16) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1}
	b = append(b, netip.MustParseAddr(sender).AsSlice()...)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return frame(append(b, netip.MustParseAddr(target).AsSlice()...), append(tags, arp)...)
}

// discovery returns an ICMPv6 message of neighbour discovery about a target.
func discovery(typ byte, target string) []byte {
	message := append(make([]byte, 8), netip.MustParseAddr(target).AsSlice()...)
	message[0] = typ
	return message
}

// asking returns messages that look for a neighbour, each with whether it names an address of the
// cluster.
func asking() []struct {
	situation string
	frame     []byte
	inside    bool
} {
	over := func(p []byte) []byte { return framed(inside("fe80::1", "ff02::1:ff00:5", 58, p)) }
	return []struct {
		situation string
		frame     []byte
		inside    bool
	}{
		{"ARP for a host", arpFor(host4, host4b), false},
		{"ARP for a node", arpFor(host4, "198.19.0.1"), false},
		{"ARP for a pod", arpFor(host4, "198.18.1.5"), true},
		{"ARP for a pod in a VLAN", arpFor(host4, "198.18.1.5", vlan), true},
		{"ARP of a pod", arpFor("198.18.1.5", host4), true},
		{"solicitation of a host", over(discovery(135, host6)), false},
		{"solicitation of a pod", over(discovery(135, "fd42:1::5")), true},
		{"advertisement of a pod", over(discovery(136, "fd42:1::5")), true},
		{"redirect to a pod", over(discovery(137, "fd42:1::5")), true},
		{"solicitation of a pod behind options", framed(inside("fe80::1", "ff02::1:ff00:5", 0,
			extension(58, nil, discovery(135, "fd42:1::5")))), true},
		{"an echo with the same bytes", over(discovery(128, "fd42:1::5")), false},
		{"an ARP message that is cut", arpFor(host4, "198.18.1.5")[:14+24], false},
	}
}

func TestGuardNamesNoPodToTheNetwork(t *testing.T) {
	l := load(t)
	for _, c := range asking() {
		t.Run(c.situation, func(t *testing.T) {
			want := ""
			if c.inside {
				want = "neighbour_in_range"
			}
			for _, mark := range []uint32{0, abi.PodMark, abi.TunnelMark} {
				l.expect(t, "guard_egress", c.frame, mark, want, mark)
			}
			if got := verdictOf(c.frame, false); got != want {
				t.Errorf("the oracle says %q, want %q", got, want)
			}
			// Other hosts may request any address.
			l.expect(t, "guard_ingress", c.frame, 0, "", 0)
		})
	}
}
