package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const ethernet = 14

// segment returns a TCP or UDP packet in a frame, with correct checksums.
func segment(from, to netip.AddrPort, proto, flags byte, body string) []byte {
	l4 := make([]byte, 8, 64)
	check := 6
	if proto == unix.IPPROTO_TCP {
		l4, check = make([]byte, 20, 64), 16
		l4[12], l4[13] = 5<<4, flags
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(body)))
	}
	binary.BigEndian.PutUint16(l4, from.Port())
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	l4 = append(l4, body...)
	binary.BigEndian.PutUint16(l4[check:], ^sum(pseudo(from.Addr(), to.Addr(), proto, len(l4)), l4))
	return ipFrame(from.Addr(), to.Addr(), proto, l4)
}

func ipFrame(src, dst netip.Addr, proto byte, payload []byte) []byte {
	h, ether := header(src, dst, proto, len(payload)), uint16(ipv6)
	if src.Is4() {
		ether = ipv4
		binary.BigEndian.PutUint16(h[10:], ^sum(h))
	}
	return frame(append(h, payload...), ether)
}

func pseudo(src, dst netip.Addr, proto byte, n int) []byte {
	b := append(src.AsSlice(), dst.AsSlice()...)
	return append(b, 0, proto, byte(n>>8), byte(n))
}

// sum returns the checksum of RFC 1071. All parts but the last have an even length.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i < len(p); i += 2 {
			s += uint32(p[i]) << 8
			if i+1 < len(p) {
				s += uint32(p[i+1])
			}
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// whole returns an error if a checksum of a frame, or of an inner IPv4 header, is wrong.
func whole(f []byte) error {
	six := binary.BigEndian.Uint16(f[12:]) == ipv6
	proto, rest, src, dst, ok := splitIP(f[ethernet:], six)
	if !ok {
		return errors.New("no IP packet")
	}
	if !six && sum(f[ethernet:ethernet+20]) != 0xffff {
		return errors.New("the checksum of the IP header is wrong")
	}
	var got uint16
	if proto == unix.IPPROTO_ICMP {
		got = sum(rest)
	} else {
		got = sum(pseudo(src, dst, byte(proto), len(rest)), rest)
	}
	if got != 0xffff {
		return fmt.Errorf("the checksum of protocol %d is wrong", proto)
	}
	if proto == unix.IPPROTO_ICMP && sum(rest[8:28]) != 0xffff {
		return errors.New("the checksum of the quoted header is wrong")
	}
	return nil
}

// runPacket runs a program on a frame. A pod's frame comes in by its own link.
func runPacket(t testing.TB, coll *ebpf.Collection, prog string, in []byte,
	mark uint32) (verdict uint32, out []byte, markOut uint32, err error) {
	t.Helper()
	link := uint32(0)
	if prog == "service_pod_in" {
		link = linksFor(t, coll).own
	}
	return runBy(t, coll, prog, in, mark, link)
}

// runBy runs a program on a frame that comes in by a link of podLinks; 0 means lo.
func runBy(t testing.TB, coll *ebpf.Collection, prog string, in []byte,
	mark, link uint32) (verdict uint32, out []byte, markOut uint32, err error) {
	t.Helper()
	var after skb
	opts := ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+64),
		Context: skb{Mark: mark, Ifindex: link}, ContextOut: &after}
	p := program(t, coll, prog)
	run := func() (err error) {
		verdict, err = p.Run(&opts)
		return err
	}
	if link == 0 {
		err = run()
	} else {
		err = linksFor(t, coll).ns.Do(run)
	}
	return verdict, opts.DataOut, after.Mark, err
}

// served returns programs with three services at node ports. The backend of 30080 (30081 for UDP)
// is pod 1 here; the backend of 30070 and 30090 is pod 2 on another node.
func served(t testing.TB) *ebpf.Collection { return servedBy(t, packets(t)) }

func servedBy(t testing.TB, coll *ebpf.Collection) *ebpf.Collection {
	t.Helper()
	l := &lab{coll: coll}
	l.serve(t, labService{name: "one", nodePort: 30080, pods: []string{"1"}},
		labService{name: "two", nodePort: 30090, pods: []string{"2"}},
		labService{name: "three", nodePort: 30070, pods: []string{"2"}})
	for i, f := range labAddrs {
		setSelf(t, l.coll, uint32(i), f.self)
		setSelf(t, l.coll, uint32(2+i), f.node)
	}
	return l.coll
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// expectPacket runs a program and expects this frame and mark.
func expectPacket(t *testing.T, coll *ebpf.Collection, prog string, in, want []byte,
	mark, wantMark uint32) {
	t.Helper()
	verdict, out, got, err := runPacket(t, coll, prog, in, mark)
	if err != nil || verdict != next || got != wantMark || !bytes.Equal(out, want) {
		t.Errorf("%s on %x: verdict %d, mark %#x, %v\n out %x\nwant %x (mark %#x)", prog, in,
			int32(verdict), got, err, out, want, wantMark)
	}
}

const servedMark = abi.ServiceMark | abi.PodMark

func TestPacketInAndOut(t *testing.T) {
	coll := served(t)
	for _, f := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			t.Run(fmt.Sprintf("%s/%d", f.name, proto), func(t *testing.T) {
				client, node, pod := at(f.client, 40000), at(f.node, 30080), at(f.pod1, 8080)
				if proto == unix.IPPROTO_UDP {
					node, pod = at(f.node, 30081), at(f.pod1, 5353)
				}

				const syn, ack = 2, 16
				expectPacket(t, coll, "service_in", segment(client, node, proto, syn, "hello"),
					segment(client, pod, proto, syn, "hello"), 0, servedMark)
				expectPacket(t, coll, "service_in", segment(client, node, proto, ack, "more"),
					segment(client, pod, proto, ack, "more"), 0, servedMark)
				answer := segment(pod, client, proto, ack, "odd")
				expectPacket(t, coll, "service_pod_in", answer, answer, 0, abi.ServiceMark)
				expectPacket(t, coll, "service_out", answer,
					segment(node, client, proto, ack, "odd"), servedMark, servedMark)

				// Without the mark it is a pod's packet, which the guard drops.
				if verdict, _, _, err := runPacket(t, coll, "service_out", answer,
					abi.PodMark); err != nil || verdict != dropped {
					t.Errorf("an answer without mark: verdict %d, %v", int32(verdict), err)
				}

				for _, other := range []netip.AddrPort{at(f.node, 22), at(f.pod2, 30080)} {
					alone := segment(client, other, proto, syn, "x")
					expectPacket(t, coll, "service_in", alone, alone, 0, 0)
				}

				stray := segment(at(f.client, 40001), at(f.node, 30080), unix.IPPROTO_TCP, ack,
					"no flow")
				expectPacket(t, coll, "service_in", stray, stray, 0, 0)
			})
		}
	}
}

// message returns a router's ICMP error, with correct checksums.
func message(from, to netip.Addr, quoted []byte) []byte {
	typ, proto := byte(3), byte(unix.IPPROTO_ICMP)
	if from.Is6() {
		typ, proto = 2, unix.IPPROTO_ICMPV6
	}
	icmp := append([]byte{typ, 4, 0, 0, 0, 0, 5, 0x78},
		quoted[ethernet:min(len(quoted), ethernet+48)]...)
	if from.Is6() {
		binary.BigEndian.PutUint16(icmp[2:], ^sum(pseudo(from, to, proto, len(icmp)), icmp))
	} else {
		binary.BigEndian.PutUint16(icmp[2:], ^sum(icmp))
	}
	return ipFrame(from, to, proto, icmp)
}

// ends returns the addresses of an ICMP error and of its inner packet, and the inner ports.
func ends(t *testing.T, f []byte) string {
	t.Helper()
	six := binary.BigEndian.Uint16(f[12:]) == ipv6
	_, rest, src, dst, _ := splitIP(f[ethernet:], six)
	_, l4, qsrc, qdst, ok := splitIP(rest[8:], six)
	if !ok {
		t.Fatalf("no quote in %x", f)
	}
	return fmt.Sprintf("%s > %s about %s > %s", src, dst,
		netip.AddrPortFrom(qsrc, binary.BigEndian.Uint16(l4)),
		netip.AddrPortFrom(qdst, binary.BigEndian.Uint16(l4[2:])))
}

func TestICMPErrorsAreTranslated(t *testing.T) {
	coll := served(t)
	for i, f := range labAddrs {
		t.Run(f.name, func(t *testing.T) {
			router := netip.MustParseAddr([]string{"198.19.131.7", "fd42:fc::7"}[i])
			client, pod, pod2 := at(f.client, 40000), at(f.pod1, 8080), at(f.pod2, 8080)
			const tcp = unix.IPPROTO_TCP
			for port, to := range map[uint16]netip.AddrPort{30080: pod, 30090: pod2} {
				expectPacket(t, coll, "service_in", segment(client, at(f.node, port), tcp, 2, ""),
					segment(client, to, tcp, 2, ""), 0, servedMark)
			}
			// The packet to the other node has the SNAT port that this node took.

			_, sent, _, err := runPacket(t, coll, "service_out", segment(client, pod2, tcp, 2, ""),
				abi.ServiceMark)
			errtest.Must(t, err)

			_, l4, _, _, _ := splitIP(sent[ethernet:], router.Is6())
			self := at(f.self, binary.BigEndian.Uint16(l4))
			for _, c := range []struct {
				situation, prog string
				in              []byte
				mark            uint32
				want            string
			}{
				{"a router outside, about an answer", "service_in",
					message(router, netip.MustParseAddr(f.node),
						segment(at(f.node, 30080), client, tcp, 16, "")), 0,
					fmt.Sprintf("%s > %s about %s > %s", router, f.pod1, pod, client)},
				{"this node, about a request", "service_out",
					message(netip.MustParseAddr(f.node), client.Addr(),
						segment(client, pod, tcp, 16, "")), 0,
					fmt.Sprintf("%s > %s about %s > %s", f.node, f.client, client,
						at(f.node, 30080))},
				{"the pod, about a request", "service_out",
					message(pod.Addr(), client.Addr(), segment(client, pod, tcp, 16, "")),
					servedMark,
					fmt.Sprintf("%s > %s about %s > %s", f.node, f.client, client,
						at(f.node, 30080))},
				{"a router outside, about the other node's answer, into the tunnel",
					"service_pod_out", message(router, pod2.Addr(),
						segment(pod2, client, tcp, 16, "")), servedMark,
					fmt.Sprintf("%s > %s about %s > %s", f.self, f.pod2, pod2, self)},
				{"the other node, about what this one sent", "service_pod_in",
					message(pod2.Addr(), self.Addr(), segment(self, pod2, tcp, 16, "")), 0,
					fmt.Sprintf("%s > %s about %s > %s", f.pod2, f.client, client, pod2)},
			} {
				verdict, out, _, err := runPacket(t, coll, c.prog, c.in, c.mark)
				if err != nil || verdict != next {
					t.Errorf("%s: verdict %d, %v", c.situation, int32(verdict), err)
					continue
				}
				if got := ends(t, out); got != c.want {
					t.Errorf("%s:\n got %s\nwant %s", c.situation, got, c.want)
				}
				if err := whole(out); err != nil {
					t.Errorf("%s: %v", c.situation, err)
				}
			}
		})
	}
}

// TestPacketsThatAreLeftAlone sends packets that belong to no service, from several addresses.
// packet_cut_test.go has the truncated packets.
func TestPacketsThatAreLeftAlone(t *testing.T) {
	coll := served(t)
	for _, f := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			port := map[byte]uint16{unix.IPPROTO_TCP: 30080, unix.IPPROTO_UDP: 30081}[proto]
			full := segment(at(f.client, 40000), at(f.node, port), proto, tcpSYN, "")
			if out, _ := passed(t, coll, "service_in", full, 0); bytes.Equal(out, full) {
				t.Errorf("%x is not translated", full)
			}
			if proto == unix.IPPROTO_TCP {
				long := segment(at(f.client, 40000), at(f.node, port), proto, tcpSYN,
					string(make([]byte, 1500)))
				for _, fragment := range fragments(long, 7) {
					expectAlone(t, coll, "service_in", fragment)
				}
			}
			expectAlone(t, coll, "service_in",
				append(append(bytes.Clone(full[:12]), 0x81, 0, 0, 42), full[12:]...))
			other := bytes.Clone(full)
			other[0] = 2 // of another host, of a bridge
			expectAlone(t, coll, "service_in", other)
		}
	}
}

// FuzzPacketsKeepTheirShape checks that a packet that gets no mark of a flow is unchanged, and that
// a packet that gets the mark keeps correct checksums.
func FuzzPacketsKeepTheirShape(f *testing.F) {
	for _, a := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			in := segment(at(a.client, 40000), at(a.node, 30080+uint16(proto/17)), proto, 2,
				"hello")
			f.Add(in)
			f.Add(in[:len(in)-9])
			f.Add(message(netip.MustParseAddr(a.pod2), netip.MustParseAddr(a.node), in))
		}
	}

	coll := served(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < ethernet || len(in) > 1500 {
			return
		}
		for _, prog := range []string{"service_in", "service_pod_in", "service_pod_out",
			"service_tun_in", "service_tun_out"} {
			verdict, out, mark, err := runPacket(t, coll, prog, in, 0)
			if errors.Is(err, unix.EINVAL) {
				return // too short for the kernel's test run
			}
			if err != nil || (verdict != next && verdict != dropped) || len(out) != len(in) {
				t.Fatalf("%s on %x: verdict %d, %v, %d bytes of %d", prog, in, int32(verdict), err,
					len(out), len(in))
			}
			if verdict == next && mark&abi.ServiceMark == 0 && prog != "service_pod_out" &&
				prog != "service_tun_out" && !bytes.Equal(in, out) {
				t.Fatalf("%s changed %x into %x without a mark", prog, in, out)
			}
		}
	})
}
