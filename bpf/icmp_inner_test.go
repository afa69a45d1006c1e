package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// icmpErrorCase is an ICMP error between hosts and its inner packet.
type icmpErrorCase struct {
	name string
	src4 string // inner, and the same for IPv6
	src6 string
	dst4 string
	dst6 string
	port uint16 // UDP destination port inside; 0 means TCP
	echo bool   // no error: an echo request with the same bytes
	want string
}

var icmpErrors = []icmpErrorCase{
	{name: "about a packet to a pod", src4: "203.0.113.1", src6: "2001:db8::1", dst4: "198.18.1.9",
		dst6: "fd42:1::9", want: "quoted_in_error"},
	{name: "about a packet from a pod", src4: "198.18.1.9", src6: "fd42:1::9", dst4: "203.0.113.1",
		dst6: "2001:db8::1", want: "quoted_in_error"},
	{name: "about a probe", src4: "203.0.113.1", src6: "2001:db8::1", dst4: "203.0.113.2",
		dst6: "2001:db8::2", port: abi.ProbePort, want: "quoted_in_error"},
	{name: "about other UDP between hosts", src4: "203.0.113.1", src6: "2001:db8::1",
		dst4: "203.0.113.2", dst6: "2001:db8::2", port: 53},
	{name: "about TCP between hosts", src4: "203.0.113.1", src6: "2001:db8::1", dst4: "203.0.113.2",
		dst6: "2001:db8::2"},
	{name: "no error but an echo of the same bytes", echo: true, src4: "198.18.1.9",
		src6: "fd42:1::9", dst4: "203.0.113.1", dst6: "2001:db8::1"},
}

func (q icmpErrorCase) typ(six bool) byte {
	switch {
	case q.echo && six:
		return 128
	case q.echo:
		return 8
	case six:
		return 1
	}
	return 3
}

func (q icmpErrorCase) src(six bool) netip.Addr { return pick(six, q.src4, q.src6) }
func (q icmpErrorCase) dst(six bool) netip.Addr { return pick(six, q.dst4, q.dst6) }

func pick(six bool, v4, v6 string) netip.Addr {
	if six {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// header returns an IP header without options or checksum.
func header(src, dst netip.Addr, proto byte, payload int) []byte {
	if src.Is6() {
		h := make([]byte, 40)
		h[0], h[6], h[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(h[4:], uint16(payload))
		copy(h[8:], src.AsSlice())
		copy(h[24:], dst.AsSlice())
		return h
	}
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+payload))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	return h
}

// icmpError returns a frame with an ICMP message between two hosts, whose inner packet is from src
// to dst.
func icmpError(six bool, typ byte, src, dst netip.Addr, port uint16) []byte {
	proto := byte(6)
	if port != 0 {
		proto = 17
	}
	inner := header(src, dst, proto, 8)
	inner = binary.BigEndian.AppendUint16(inner, 40000)
	inner = binary.BigEndian.AppendUint16(inner, port)
	inner = append(inner, 0, 8, 0, 0)
	message := append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, inner...)
	outer, ether := byte(1), uint16(ipv4)
	if six {
		outer, ether = 58, ipv6
	}
	p := append(header(pick(six, "203.0.113.7", "2001:db8::7"),
		pick(six, "203.0.113.8", "2001:db8::8"), outer, len(message)), message...)
	return append(binary.BigEndian.AppendUint16(make([]byte, 12), ether), p...)
}

func TestICMPErrorsHaveNoInnerPacketOfTheCluster(t *testing.T) {
	l := load(t)
	for _, six := range []bool{false, true} {
		for _, q := range icmpErrors {
			t.Run(q.name+map[bool]string{false: ", IPv4", true: ", IPv6"}[six], func(t *testing.T) {
				in := icmpError(six, q.typ(six), q.src(six), q.dst(six), q.port)
				l.expect(t, "guard_egress", in, 0, q.want, 0)
				if q.want == "" {
					return
				}
				// An echo request that is cut inside ICMP cannot be distinguished from an error.
				for n := len(in) - 13; n > 14+len(header(q.src(six), q.dst(six), 0, 0))+8; n-- {
					l.expect(t, "guard_egress", in[:n], 0, "quoted_in_error", 0)
				}
			})
		}
	}
}
