package bpf

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// verdictOf returns the reason that the guard at egress must return for a frame; "" means that it
// passes. It is written as plainly as possible.
func verdictOf(frame []byte, marked bool) string {
	off, tags := 12, 0
	typ := binary.BigEndian.Uint16(frame[off:])
	for off += 2; typ == vlan || typ == qinq; off += 4 {
		if tags++; tags > 2 {
			return "vlan_depth"
		}
		if len(frame) < off+4 {
			return "vlan_truncated"
		}
		typ = binary.BigEndian.Uint16(frame[off+2:])
	}

	inRange := func(a netip.Addr) bool {
		return netip.MustParsePrefix("198.18.0.0/16").Contains(a) ||
			netip.MustParsePrefix("fd42:1::/48").Contains(a)
	}

	var src, dst netip.Addr
	switch p := frame[off:]; {
	case typ == ipv4 && len(p) < 20:
		return "ipv4_truncated"
	case typ == ipv6 && len(p) < 40:
		return "ipv6_truncated"
	case typ == ipv4 && p[0]>>4 != 4, typ == ipv6 && p[0]>>4 != 6:
		return "ip_version"
	case typ == ipv4:
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	case typ == ipv6:
		src, dst = netip.AddrFrom16([16]byte(p[8:24])).Unmap(),
			netip.AddrFrom16([16]byte(p[24:40])).Unmap()
	case typ == arp:
		for _, at := range []int{14, 24} {
			if len(p) >= at+4 && inRange(netip.AddrFrom4([4]byte(p[at:]))) {
				return "neighbour_in_range"
			}
		}
		return ""
	default:
		return ""
	}

	node := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("198.19.0.1") || a == netip.MustParseAddr("fd42:9::1")
	}

	vip := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("198.19.199.1") || a == netip.MustParseAddr("fd42:fd::1")
	}
	switch {
	case marked && inRange(dst):
		return "pod_to_range"
	case marked && node(dst):
		return "pod_to_node"
	case marked && vip(dst):
		return "pod_to_vip"
	case inRange(src):
		return "src_in_range"
	case inRange(dst):
		return "dst_in_range"
	}

	return behind(frame[off:], typ == ipv6,
		judge{inRange: inRange, node: node, vip: vip, leaves: true, pod: marked})
}

// splitIP reads an IP header. ok is false if it is cut or of another version.
func splitIP(p []byte, six bool) (proto int, rest []byte, src, dst netip.Addr, ok bool) {
	if six {
		if len(p) < 40 || p[0]>>4 != 6 {
			return 0, nil, src, dst, false
		}
		return int(p[6]), p[40:], netip.AddrFrom16([16]byte(p[8:24])).Unmap(), netip.AddrFrom16(
			[16]byte(p[24:40])).Unmap(), true
	}
	if len(p) < 20 || p[0]>>4 != 4 {
		return 0, nil, src, dst, false
	}
	proto = int(p[9])
	if binary.BigEndian.Uint16(p[6:])&0x1fff != 0 {
		proto = 255
	}
	end := min(int(p[0]&0xf)*4, len(p))
	return proto, p[end:], netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4(
		[4]byte(p[16:20])), true
}

// FuzzGuardAgainstOracle runs the compiled guard beside verdictOf.
func FuzzGuardAgainstOracle(f *testing.F) {
	for _, fam := range families {
		for _, tags := range [][]uint16{nil, {vlan}, {qinq, vlan}, {vlan, vlan, vlan}} {
			f.Add(ip(fam.pod, fam.out, tags...), false)
			f.Add(ip(fam.out, fam.node, tags...), true)
			f.Add(ip(fam.out, fam.vip, tags...), true)
			f.Add(ip(fam.out, fam.pod2, tags...)[:20], true)
		}
	}

	for _, c := range asking() {
		f.Add(c.frame, true)
	}

	for _, six := range []bool{false, true} {
		for _, q := range icmpErrors {
			f.Add(icmpError(six, q.typ(six), q.src(six), q.dst(six), q.port), false)
		}
	}

	for _, c := range encapsulations() {
		for n := range len(c.frame) {
			f.Add(c.frame[:n+1], n%2 == 0)
		}
	}

	l := load(f)
	f.Fuzz(func(t *testing.T, in []byte, marked bool) {
		if len(in) < 14 || len(in) > 1500 {
			return // the kernel makes no such frame
		}
		var mark uint32
		if marked {
			mark = abi.PodMark
		}
		_, err := l.progs["guard_egress"].Run(&ebpf.RunOptions{Data: in,
			DataOut: make([]byte, len(in)+64), Context: skb{Mark: mark}})
		if errors.Is(err, unix.EINVAL) {
			return // too short for the kernel's test run
		}
		l.expect(t, "guard_egress", in, mark, verdictOf(in, marked), mark)
	})
}
