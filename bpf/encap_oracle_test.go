package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// reading is the state of the oracle while it reads the headers of a packet, one per step, as
// lib/guard/encap.h does. The oracle is written as plainly as possible, and the test compares it
// with the programs.
type reading struct {
	rest   []byte // from the next header on
	proto  int    // of the next header; 255 means none
	six    bool   // the last IP header
	dst    netip.Addr
	depth  int
	quoted bool
	judge  judge
}

// judge holds the rules that apply to a packet.
type judge struct {
	inRange, node, vip func(netip.Addr) bool
	leaves, pod        bool
}

const (
	headersMax = 32
	listedMax  = 4 // addresses of a routing header in one step
)

// behind returns the reason that the guard must return for the headers behind an IP header; ""
// means that the packet passes.
func behind(p []byte, six bool, j judge) string {
	proto, rest, _, dst, ok := splitIP(p, six)
	if !ok {
		return ""
	}
	r := &reading{rest: rest, proto: proto, six: six, dst: dst, judge: j}
	for steps := 0; r.follows(); {
		cost, reason, end := r.step()
		if reason != "" && r.quoted {
			reason = "quoted_in_error"
		}
		if steps += cost; steps > headersMax {
			return "inner_depth"
		}
		if reason != "" || end {
			return reason
		}
		if steps == headersMax {
			return "inner_depth" // one more step would see the end
		}
	}
	return ""
}

func (r *reading) follows() bool {
	switch r.proto {
	case 4, 41, 51, 143:
		return true
	case 1:
		return !r.six && r.judge.leaves
	case 58:
		return r.six && r.judge.leaves
	case 17:
		return r.quoted
	}
	return r.six && slices.Contains([]int{0, 43, 44, 60, 135, 139, 140}, r.proto)
}

// step reads one header. cost is the number of steps that the program needs for it.
func (r *reading) step() (cost int, reason string, end bool) {
	switch r.proto {
	case 4, 41:
		reason = r.ip(r.proto == 41)
		return 1, reason, false
	case 143:
		reason, end = r.ethernet()
		return 1, reason, end
	case 17:
		probe := binary.BigEndian.AppendUint16(nil, abi.ProbePort)
		if len(r.rest) < 4 || bytes.Equal(r.rest[:2], probe) || bytes.Equal(r.rest[2:4], probe) {
			return 1, "quoted_in_error", true
		}
		return 1, "", true
	case 1, 58:
		reason, end = r.icmp()
		return 1, reason, end
	}
	return r.extension()
}

func (r *reading) icmp() (reason string, end bool) {
	if len(r.rest) == 0 {
		return "quoted_in_error", true
	}
	isError := slices.Contains([]byte{3, 4, 5, 11, 12}, r.rest[0])
	if r.six {
		isError = r.rest[0] < 128
	}
	if r.six && r.rest[0] >= 135 && r.rest[0] <= 137 && len(r.rest) >= 24 &&
		r.judge.inRange(netip.AddrFrom16([16]byte(r.rest[8:24])).Unmap()) {
		return "neighbour_in_range", true
	}
	if !isError {
		return "", true
	}
	r.quoted, r.judge.pod = true, false
	r.rest, r.proto = r.rest[min(8, len(r.rest)):], 4
	if r.six {
		r.proto = 41
	}
	return "", false
}

func (r *reading) ip(six bool) string {
	if r.depth++; r.depth > 2 {
		return "inner_depth"
	}
	proto, rest, src, dst, ok := splitIP(r.rest, six)
	if !ok {
		return "inner_truncated"
	}
	r.proto, r.rest, r.six, r.dst = proto, rest, six, dst
	if r.judge.inRange(src) {
		return "inner_src_in_range"
	}
	return r.judge.to(dst, "inner_dst_in_range")
}

// to returns the reason to drop a packet whose inner destination is a; "" means that it passes.
func (j judge) to(a netip.Addr, inRange string) string {
	switch {
	case j.inRange(a):
		return inRange
	case j.pod && j.node(a):
		return "inner_to_node"
	case j.pod && j.vip(a):
		return "inner_to_vip"
	}
	return ""
}

func (r *reading) ethernet() (reason string, end bool) {
	for off := 12; ; off += 4 {
		if len(r.rest) < off+2 {
			return "inner_truncated", true
		}
		typ := binary.BigEndian.Uint16(r.rest[off:])
		switch {
		case (typ == vlan || typ == qinq) && off == 12+2*4:
			return "inner_depth", true
		case typ == vlan || typ == qinq:
			continue
		case typ != ipv4 && typ != ipv6:
			return "", true
		}
		r.rest, r.proto = r.rest[off+2:], map[uint16]int{ipv4: 4, ipv6: 41}[typ]
		return "", false
	}
}

func (r *reading) extension() (cost int, reason string, end bool) {
	h := r.rest
	if len(h) < 8 {
		return 1, "inner_truncated", true
	}
	size := (int(h[1]) + 1) * 8
	var listed int
	switch r.proto {
	case 44:
		if binary.BigEndian.Uint16(h[2:])&0xfff8 != 0 {
			return 1, "", true
		}
		size = 8
	case 51:
		size = (int(h[1]) + 2) * 4
	case 43:
		if listed, reason = r.routing(h); reason != "" {
			return 1 + (listed+listedMax-1)/listedMax, reason, true
		}
	}
	r.proto, r.rest = int(h[0]), h[min(size, len(h)):]
	return 1 + (listed+listedMax-1)/listedMax, "", false
}

// routing judges the addresses that a routing header lists. listed is the number of addresses that
// it read.
func (r *reading) routing(h []byte) (listed int, reason string) {
	room, same, sameLast, n := int(h[1])*8, 0, 0, 0
	switch h[2] {
	case 0, 2:
		n = room / 16
	case 4:
		n = min(room/16, int(h[4])+1)
	case 3:
		same, sameLast = int(h[4]>>4), int(h[4]&15)
		if room -= int(h[5] >> 4); room >= 16-sameLast {
			n = 1 + (room-(16-sameLast))/(16-same)
		}
	}

	for off := 8; listed < n; {
		if listed++; listed == n {
			same = sameLast
		}
		if off+16-same > len(h) {
			return listed, "inner_truncated"
		}
		full := r.dst.As16()
		copy(full[same:], h[off:off+16-same])
		if reason = r.judge.to(netip.AddrFrom16(full).Unmap(), "routed_by_range"); reason != "" {
			return listed, reason
		}
		off += 16 - same
	}

	return listed, ""
}
