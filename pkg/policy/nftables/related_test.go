package nftables_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// aNode is a node of the cluster that is not this one, in both families.
var aNode = []netip.Addr{netip.MustParseAddr("198.19.0.77"), netip.MustParseAddr("fd42:ff::77")}

// datagram is the first packet of a UDP flow that conntrack knows. Its source is a pod of the lab
// or an address behind the link up.
type datagram struct {
	flow  policy.Flow
	sport uint16
}

// know adds a flow to conntrack. No table must be in force.
func (l *lab) know(src, dst netip.Addr) datagram {
	l.t.Helper()
	f := policy.Flow{Src: src, Dst: dst, Proto: policy.UDP, Port: 4500}
	sport := sourcePort(l.id)
	l.arrive([]policy.Flow{f}, true)
	return datagram{f, sport}
}

// report is an ICMP error about a datagram, to its sender.
type report struct {
	about datagram
	from  netip.Addr
	// tunnel reports whether the link up counts as a tunnel.
	tunnel bool
	passes bool
	words  string
}

// frame returns the report as an Ethernet frame. The content that could leak follows the quoted
// header.
func (r report) frame(id uint64) []byte {
	outer := policy.Flow{Src: r.from, Dst: r.about.flow.Src, Proto: policy.Proto(unix.IPPROTO_ICMP)}
	inner := packet(r.about.flow, id)[14:]
	typ, head := byte(3), 20
	if r.from.Is6() {
		typ, head = 1, 40
		outer.Proto = policy.Proto(unix.IPPROTO_ICMPV6)
	}
	binary.BigEndian.PutUint16(inner[head:], r.about.sport)

	frame := packet(outer, id)
	frame = append(frame[:14+head:14+head], typ, 1, 0, 0, 0, 0, 0, 0)
	frame = append(frame, inner...)
	length := uint16(len(frame) - 14)
	if r.from.Is6() {
		binary.BigEndian.PutUint16(frame[14+4:], length-40)
		return frame
	}
	binary.BigEndian.PutUint16(frame[14+2:], length)
	header := frame[14:34]
	header[10], header[11] = 0, 0
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
	return frame
}

// report sends reports and checks which of them arrive.
func (l *lab) report(reports []report) {
	l.t.Helper()
	ip := nettest.NeedProgram(l.t, "ip")
	for _, tunnel := range []bool{false, true} {
		group := uint32(0)
		if tunnel {
			group = abi.TunnelGroup
		}
		l.run(l.node, ip, fmt.Sprint("link set dev up group ", group))
		first := l.id
		var sent []report
		for _, r := range reports {
			if r.tunnel == tunnel {
				from, _ := l.at(r.from)
				frame := r.frame(l.id)
				from.Run(l.t, func() error { return nettest.SendFrames("eth0", frame) })
				sent, l.id = append(sent, r), l.id+1
			}
		}

		var arrived []bool
		for deadline := time.Now().Add(expectation); ; {
			time.Sleep(settle)
			arrived = l.arrived(first, len(sent))
			missing := false
			for i, r := range sent {
				missing = missing || r.passes && !arrived[i]
			}
			if !missing || time.Now().After(deadline) {
				break
			}
		}
		for i, r := range sent {
			if arrived[i] != r.passes {
				l.t.Errorf("%s: error from %v about a packet from %v to %v, tunnel %t: arrived %t",
					r.words, r.from, r.about.flow.Src, r.about.flow.Dst, r.tunnel, arrived[i])
			}
		}
	}
	l.run(l.node, ip, "link set dev up group 0")
}

// nodeKnows opens a flow of UDP from a process of the node to a pod and returns it.
func (l *lab) nodeKnows(to netip.Addr) (d datagram) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 4500).String())
		if err != nil {
			return err
		}
		defer c.Close()
		from := c.LocalAddr().(*net.UDPAddr).AddrPort()
		d = datagram{policy.Flow{Src: from.Addr().Unmap(), Dst: to, Proto: policy.UDP, Port: 4500},
			from.Port()}
		_, err = c.Write([]byte("x"))
		return err
	})
	return d
}

// An ICMP error carries any content that its sender chooses behind the quoted header. So it passes
// only if its sender is part of the connection.
func TestErrorsPassOnlyFromThoseThatTheyConcern(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	for _, line := range []string{"add table inet others", // A namespace without rules has no conntrack.
		"add chain inet others forward { type filter hook forward priority 0; }",
		"add rule inet others forward ct state new counter",
		"add counter inet others input",
		"add chain inet others late { type filter hook input priority 96; }",
		"add rule inet others late ct state related counter name input"} {
		l.run(l.node, nft, line)
	}
	var reports []report
	for f := range 2 {
		pod := func(i int) netip.Addr { return policytest.PodAddrs(i)[f] }
		outside, router, node := policytest.Outside[f], policytest.Outside[f].Next(), aNode[f]
		// Pods 1 to 3 run on this node, and pods 5 and 6 on another.
		local, remote := l.know(pod(2), pod(1)), l.know(pod(2), pod(5))
		out, in := l.know(pod(2), outside), l.know(outside, pod(2))
		from5 := l.know(pod(5), pod(2))

		reports = append(reports,
			report{local, pod(1), false, true, "the server of this node"},
			report{local, pod(3), false, false, "a pod of this node, about two others"},
			report{local, pod(5), true, false, "a pod of another node, about two of this one"},
			report{local, node, true, true, "another node, out of the tunnel"},
			report{local, outside, false, false, "from outside, about two pods"},
			report{remote, pod(5), true, true, "the server of another node"},
			report{remote, pod(6), true, false, "another pod of another node"},
			report{remote, pod(3), false, false, "a pod of this node, about a remote server"},
			report{remote, node, true, true, "a node on the path inside the tunnel"},
			report{remote, node, false, false, "a node's address, from outside"},
			report{remote, router, false, false, "a router outside, about a packet in a tunnel"},
			report{out, outside, false, true, "the server outside"},
			report{out, router, false, true, "a router on the path outside"},
			report{out, pod(3), false, false, "a pod of this node, about a server outside"},
			report{out, pod(5), true, false, "a pod of another node, about a server outside"},
			report{in, pod(2), false, true, "the server, to a client outside"},
			report{in, pod(3), false, false, "another pod, to a client outside"},
			report{from5, pod(2), false, true, "the server, to a pod of another node"},
			report{from5, pod(3), false, false, "another pod, to a pod of another node"},
		)
		// Connections of the fast path are not known to conntrack.
		fast := func(src, dst netip.Addr) datagram {
			return datagram{policy.Flow{Src: src, Dst: dst, Proto: policy.UDP, Port: 4500}, 999}
		}
		reports = append(reports,
			report{fast(pod(2), pod(1)), pod(1), false, true, "fast path: the server of this node"},
			report{fast(pod(2), pod(1)), pod(3), false, false, "fast path: a pod of this node"},
			report{fast(pod(2), pod(5)), pod(5), true, true, "fast path: the server of another node"},
			report{fast(pod(2), pod(5)), pod(6), true, false, "fast path: a pod of another node"},
			report{fast(pod(2), pod(5)), node, true, true, "fast path: a node on the path"},
			report{fast(pod(2), pod(5)), router, false, false, "fast path: a router outside"},
			report{fast(pod(2), outside), router, false, true, "unknown: a router, about outside"},
			report{fast(pod(5), pod(2)), pod(3), false, false, "fast path: to another node"},
		)
	}

	control := slices.Clone(reports) // Without a table all of them arrive.
	for i := range control {
		control[i].passes = true
	}
	l.report(control)
	p.SetNodeAddrs(aNode)
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.0.0/24"),
		netip.MustParsePrefix("fd42::/64")})
	l.apply(p.Plan())
	before := l.dropped("policy_related")
	l.report(reports)

	var lost uint64
	for _, r := range reports {
		if !r.passes {
			lost++
		}
	}
	if n := l.dropped("policy_related") - before; n != lost {
		t.Errorf("policy_related counted %d, want %d", n, lost)
	}
	for f := range 2 {
		l.reportToNode(f)
	}
}

// reportToNode sends errors about a flow of the node itself, from its end and from another pod.
func (l *lab) reportToNode(f int) {
	l.t.Helper()
	d := l.nodeKnows(policytest.PodAddrs(2)[f])
	drops := func() uint64 { return l.dropped("policy_related") }
	for i, want := range map[int]uint64{2: 0, 3: 1} {
		before, first := drops(), l.counted("input")
		from := policytest.PodAddrs(i)[f]
		frame := report{about: d, from: from}.frame(l.id)
		l.id++
		l.pods[i].Run(l.t, func() error { return nettest.SendFrames("eth0", frame) })
		nettest.Until(l.t, expectation, "an error at the node", func() bool {
			return l.counted("input") > first
		})
		if n := drops() - before; n != want {
			l.t.Errorf("error from %v about a packet from the node to pod 2: %d dropped, want %d", from,
				n, want)
		}
	}
}
