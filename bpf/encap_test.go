package bpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// inside returns an IP packet between two addresses.
func inside(src, dst string, proto byte, payload []byte) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	return append(header(s, d, proto, len(payload)), payload...)
}

// framed returns an IP packet in a frame.
func framed(p []byte) []byte {
	if p[0]>>4 == 6 {
		return frame(p, ipv6)
	}
	return frame(p, ipv4)
}

// extension returns an IPv6 extension header with a body, padded to a multiple of 8 bytes.
func extension(next byte, body, payload []byte) []byte {
	for len(body)%8 != 6 {
		body = append(body, 0)
	}
	b := append([]byte{next, byte(len(body) / 8)}, body...)
	return append(b, payload...)
}

// listing returns a routing header of a type that lists full addresses.
func listing(typ, next byte, payload []byte, addrs ...string) []byte {
	body := []byte{typ, byte(len(addrs)), byte(len(addrs) - 1), 0, 0, 0}
	for _, a := range addrs {
		full := netip.MustParseAddr(a).As16()
		body = append(body, full[:]...)
	}
	return extension(next, body, payload)
}

// compressed returns a routing header of RPL (RFC 6554). It lists only the tails of addresses:
// without the first same bytes or, for the last address, the first sameLast bytes, which are equal
// to the destination's.
func compressed(next byte, same, sameLast int, payload []byte, addrs ...string) []byte {
	body := []byte{3, byte(len(addrs)), byte(same<<4 | sameLast), 0, 0, 0}
	for i, a := range addrs {
		full := netip.MustParseAddr(a).As16()
		if i == len(addrs)-1 {
			same = sameLast
		}
		body = append(body, full[same:]...)
	}
	body[3] = byte((8-(len(body)+2)%8)%8) << 4
	return extension(next, body, payload)
}

// authenticated returns an authentication header of 24 bytes (RFC 4302).
func authenticated(next byte, payload []byte) []byte {
	return append(append([]byte{next, 4}, make([]byte, 22)...), payload...)
}

// part returns a fragment header. offset is in units of 8 bytes.
func part(next byte, offset uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{next, 0}, offset<<3|1)
	return append(append(b, 0, 0, 0, 7), payload...)
}

// inEthernet returns a frame inside a packet, with VLAN tags.
func inEthernet(p []byte, tags ...uint16) []byte {
	typ := uint16(ipv4)
	if p[0]>>4 == 6 {
		typ = ipv6
	}
	return frame(p, append(tags, typ)...)
}

// quoting returns an ICMP error with an inner packet.
func quoting(typ byte, p []byte) []byte { return append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, p...) }

const (
	host4, host4b = "203.0.113.7", "203.0.113.8"
	host6, host6b = "2001:db8::7", "2001:db8::8"
)

type encapsulation struct {
	situation string
	frame     []byte
	want      string // at egress, and at ingress where leaves is not set
	marked    string // at egress, for a pod's packet; "" means want
	leaves    bool   // only egress drops the packet
}

func passes(situation string, frame []byte) encapsulation {
	return encapsulation{situation: situation, frame: frame}
}

func drops(situation string, frame []byte, want string) encapsulation {
	return encapsulation{situation: situation, frame: frame, want: want}
}

// dropsLeaving returns a packet that is dropped at egress only, dropsPods a packet that is dropped
// at egress only if it comes from a pod.
func dropsLeaving(situation string, frame []byte, want string) encapsulation {
	return encapsulation{situation: situation, frame: frame, want: want, leaves: true}
}

func dropsPods(situation string, frame []byte, want string) encapsulation {
	return encapsulation{situation: situation, frame: frame, marked: want}
}

// encapsulations returns packets between hosts that contain other packets or routing headers.
func encapsulations() []encapsulation {
	udp := make([]byte, 8)
	pod4, pod6 := inside("198.18.1.5", host4, 17, udp), inside("fd42:1::5", host6, 17, udp)
	to4, to6 := inside(host4, "198.18.1.5", 17, udp), inside(host6, "fd42:1::5", 17, udp)
	hosts4, hosts6 := inside(host4, host4b, 17, udp), inside(host6, host6b, 17, udp)
	node4, node6 := inside(host4, "198.19.0.1", 17, udp), inside(host6, "fd42:9::1", 17, udp)
	vip6 := inside(host6, "fd42:fd::1", 17, udp)
	in4 := func(proto byte, p []byte) []byte { return framed(inside(host4, host4b, proto, p)) }
	in6 := func(proto byte, p []byte) []byte { return framed(inside(host6, host6b, proto, p)) }
	later := inside(host4, host4b, 4, pod4)
	later[6], later[7] = 0, 7
	all := []encapsulation{
		drops("IPv4 in IPv4", in4(4, pod4), "inner_src_in_range"),
		drops("IPv4 in IPv4, to a pod", in4(4, to4), "inner_dst_in_range"),
		drops("IPv6 in IPv4", in4(41, pod6), "inner_src_in_range"),
		drops("IPv4 in IPv6", in6(4, to4), "inner_dst_in_range"),
		drops("IPv6 in IPv6", in6(41, to6), "inner_dst_in_range"),
		passes("a host's in IPv4", in4(4, hosts4)),
		passes("a host's in IPv6", in6(41, hosts6)),
		dropsPods("to a node in IPv4", in4(4, node4), "inner_to_node"),
		dropsPods("to a node in IPv6", in6(41, node6), "inner_to_node"),
		dropsPods("to a balancer in IPv6", in6(41, vip6), "inner_to_vip"),
		passes("a later fragment of IPv4 in IPv4", framed(later)),

		drops("two deep", in6(41, inside(host6, host6b, 4, to4)), "inner_dst_in_range"),
		passes("two deep, a host's", in6(41, inside(host6, host6b, 4, hosts4))),
		drops("three deep",
			in6(41, inside(host6, host6b, 4, inside(host4, host4b, 4, hosts4))), "inner_depth"),

		drops("behind an IPv4 authentication header",
			in4(51, authenticated(4, pod4)), "inner_src_in_range"),
		drops("behind an IPv6 authentication header",
			in6(51, authenticated(41, pod6)), "inner_src_in_range"),
		drops("ioam6: behind hop-by-hop options",
			in6(0, extension(41, make([]byte, 30), to6)), "inner_dst_in_range"),
		drops("behind destination options",
			in6(60, extension(4, make([]byte, 6), to4)), "inner_dst_in_range"),
		drops("behind four extension headers",
			in6(0, extension(60, nil, extension(43, []byte{253}, part(41, 0, to6)))),
			"inner_dst_in_range"),
		passes("in a later fragment", in6(44, part(41, 7, to6))),
		passes("a host's behind four extension headers",
			in6(0, extension(60, nil, extension(43, []byte{253}, part(17, 0, udp))))),
		drops("a frame in IPv6", in6(143, inEthernet(to6)), "inner_dst_in_range"),
		drops("a frame with tags in IPv6",
			in6(143, inEthernet(to4, qinq, vlan)), "inner_dst_in_range"),
		drops("a frame with three tags in IPv6",
			in6(143, inEthernet(hosts4, qinq, vlan, vlan)), "inner_depth"),
		passes("a frame that is no IP in IPv6", in6(143, frame(to4, mpls))),

		drops("seg6 in mode encap", in6(43, listing(4, 41, to6, host6b)), "inner_dst_in_range"),
		drops("seg6 in mode encap, IPv4",
			in6(43, listing(4, 4, to4, host6b)), "inner_dst_in_range"),
		drops("seg6 in mode inline, to a pod",
			in6(43, listing(4, 17, udp, "fd42:1::5", host6b)), "routed_by_range"),
		dropsPods("seg6 by a node",
			in6(43, listing(4, 17, udp, host6, "fd42:9::1", host6b)), "inner_to_node"),
		passes("seg6 by hosts", in6(43, listing(4, 17, udp, host6, host6b))),
		drops("seg6 by ten hosts and a pod",
			in6(43, listing(4, 17, udp,
				append(slices.Repeat([]string{host6}, 10), "fd42:1::5")...)),
			"routed_by_range"),
		drops("source route to a pod",
			in6(43, listing(0, 17, udp, host6, "fd42:1::5")), "routed_by_range"),
		drops("mobile node that is a pod",
			in6(43, listing(2, 17, udp, "fd42:1::5")), "routed_by_range"),
		drops("a pod in a routing header two deep",
			in6(41, inside(host6, host6b, 43, listing(4, 17, udp, "fd42:1::5"))),
			"routed_by_range"),
		drops("rpl, whole addresses",
			in6(43, compressed(17, 0, 0, udp, host6, "fd42:1::5")), "routed_by_range"),
		drops("rpl, compressed",
			framed(inside(host6, "fd42:8::1", 43,
				compressed(17, 2, 2, udp, "fd42:7::1", "fd42:1::5"))),
			"routed_by_range"),
		drops("rpl, the last compressed more",
			framed(inside(host6, "fd42:1:ff::1", 43,
				compressed(17, 0, 5, udp, "2001:db8::1", "fd42:1::5"))),
			"routed_by_range"),
		passes("rpl by hosts",
			in6(43, compressed(17, 8, 12, udp, "2001:db8::1", "2001:db8::2", "2001:db8::3"))),

		dropsLeaving("ICMPv6 error behind hop-by-hop options",
			in6(0, extension(58, nil, quoting(1, to6))),
			"quoted_in_error"),
		dropsLeaving("ICMP error inside IPv4",
			in4(4, inside(host4, host4b, 1, quoting(3, to4))),
			"quoted_in_error"),
		dropsLeaving("ICMP error that quotes IPv4 in IPv4",
			in4(1, quoting(3, inside(host4, host4b, 4, to4))),
			"quoted_in_error"),
		dropsLeaving("ICMPv6 error that quotes seg6",
			in6(58, quoting(3, inside(host6, host6b, 43, listing(4, 17, udp, "fd42:1::5")))),
			"quoted_in_error"),
		passes("ICMP error that quotes what came from a node",
			in4(1, quoting(3, node4))),
	}
	long := func(n int) []byte {
		p := udp
		next := byte(17)
		for range n {
			p, next = extension(next, nil, p), 60
		}
		return in6(next, p)
	}
	return append(all,
		passes("31 extension headers", long(31)),
		drops("32 extension headers", long(32), "inner_depth"))
}

func TestGuardJudgesPacketsInsidePackets(t *testing.T) {
	l := load(t)
	for _, c := range encapsulations() {
		t.Run(c.situation, func(t *testing.T) {
			in := c.want
			if c.leaves {
				in = ""
			}
			l.expect(t, "guard_ingress", c.frame, 0, in, 0)
			l.expect(t, "guard_ingress_l3", c.frame, 0, in, 0)

			const mark = abi.PodMark
			marked := c.want
			if c.marked != "" {
				marked = c.marked
			}
			for _, prog := range []string{"guard_egress", "guard_egress_l3"} {
				l.expect(t, prog, c.frame, 0, c.want, 0)
				l.expect(t, prog, c.frame, mark, marked, mark)
			}
		})
	}
}

// TestGuardReadsEncapsulationLikeItsOracle cuts each packet at every length.
func TestGuardReadsEncapsulationLikeItsOracle(t *testing.T) {
	l := load(t)
	for _, c := range encapsulations() {
		t.Run(c.situation, func(t *testing.T) {
			for _, mark := range []uint32{0, abi.PodMark} {
				if got := verdictOf(c.frame, false); got != c.want {
					t.Fatalf("the oracle says %q, want %q", got, c.want)
				}
				for n := 14 + 40; n <= len(c.frame); n++ {
					in := c.frame[:n]
					l.expect(t, "guard_egress", in, mark, verdictOf(in, mark != 0), mark)
				}
			}
		})
	}
}
