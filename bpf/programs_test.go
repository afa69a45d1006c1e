package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// next and dropped are the verdicts of bpf/include/kernel.h.
const (
	next    uint32 = 0xffff_ffff
	dropped uint32 = 2
)

// skb is struct __sk_buff (include/uapi/linux/bpf.h), of which tests set the mark.
type skb struct {
	Len, PktType, Mark uint32
	_                  [6]uint32
	IngressIfindex     uint32
	Ifindex            uint32
	_                  [37]uint32
}

// loaded holds the programs with new maps: pods in 198.18.0.0/16 and fd42:1::/48, nodes 198.19.0.1
// and fd42:9::1, LoadBalancer IPs 198.19.199.1 and fd42:fd::1.
type loaded struct {
	progs map[string]*ebpf.Program
	drops map[string]*ebpf.Map // by program
}

func load(t testing.TB) loaded {
	t.Helper()
	nettest.NeedBPF(t)
	errtest.Must(t, rlimit.RemoveMemlock())

	l := loaded{make(map[string]*ebpf.Program), make(map[string]*ebpf.Map)}
	for _, specOf := range []func() (*ebpf.CollectionSpec, error){LoadGuardIngress,
		LoadGuardEgress} {
		spec, err := specOf()
		errtest.Must(t, err)

		set := map[string]uint32{"pod_mark": abi.PodMark, "service_mark": abi.ServiceMark,
			"probe_port": abi.ProbePort}
		for name, v := range spec.Variables {
			errtest.Must(t, v.Set(set[name]))
		}

		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatalf("load: %+v", err)
		}

		t.Cleanup(coll.Close)
		for name, prog := range coll.Programs {
			l.progs[name], l.drops[name] = prog, coll.Maps["drops"]
		}

		fill(t, coll.Maps)
	}

	return l
}

// Indexes of the input links of packets.
const guardedLink, podLink = 7, 9

func fill(t testing.TB, maps map[string]*ebpf.Map) {
	t.Helper()
	put := func(name string, key, value any) {
		if m := maps[name]; m != nil {
			if err := m.Put(key, value); err != nil {
				t.Fatalf("fill %s: %v", name, err)
			}
		}
	}
	type rangeKey struct {
		Bits uint32
		Addr [16]byte
	}
	put("ranges", rangeKey{96 + 16, netip.MustParseAddr("198.18.0.0").As16()}, uint8(1))
	put("ranges", rangeKey{48, netip.MustParseAddr("fd42:1::").As16()}, uint8(1))
	put("nodes", netip.MustParseAddr("198.19.0.1").As16(), uint8(1))
	put("nodes", netip.MustParseAddr("fd42:9::1").As16(), uint8(1))
	put("guarded_links", uint32(guardedLink), uint8(1))
	put("vips", netip.MustParseAddr("198.19.199.1").As16(), uint8(1))
	put("vips", netip.MustParseAddr("fd42:fd::1").As16(), uint8(1))
}

// counts returns the drops of a program so far, by name, without zeroes.
func (l loaded) counts(t *testing.T, prog string) map[string]uint64 {
	t.Helper()
	got := make(map[string]uint64)
	for _, r := range Reasons {
		var perCPU []uint64
		errtest.Must(t, l.drops[prog].Lookup(r.Number, &perCPU))
		for _, n := range perCPU {
			if n > 0 {
				got[r.Name] += n
			}
		}
	}
	return got
}

// fate returns the reason for which a program drops a packet that came in by a link; "" means that
// it passes.
func (l loaded) fate(t *testing.T, prog string, frame []byte, mark, link uint32) string {
	t.Helper()
	before := l.counts(t, prog)
	_, err := l.progs[prog].Run(&ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+64),
		Context: skb{Mark: mark, IngressIfindex: link},
	})
	if err != nil {
		t.Fatalf("run %s on %x: %v", prog, frame, err)
	}
	for name, n := range l.counts(t, prog) {
		if n != before[name] {
			return name
		}
	}
	return ""
}

// run returns the verdict, the mark afterwards and the counted reason.
func (l loaded) run(t *testing.T, prog string, frame []byte,
	mark uint32) (verdict, markOut uint32, reason string) {
	t.Helper()
	before := l.counts(t, prog)
	var out skb
	verdict, err := l.progs[prog].Run(&ebpf.RunOptions{Data: frame,
		DataOut: make([]byte, len(frame)+64), Context: skb{Mark: mark}, ContextOut: &out})
	if err != nil {
		t.Fatalf("run %s on %x: %v", prog, frame, err)
	}
	for name, n := range l.counts(t, prog) {
		if n != before[name] {
			if n != before[name]+1 || reason != "" {
				t.Fatalf("%s: counted more than once: %s", prog, name)
			}
			reason = name
		}
	}
	return verdict, out.Mark, reason
}

// EtherTypes.
const (
	ipv4   = 0x0800
	arp    = 0x0806
	vlan   = 0x8100
	ipv6   = 0x86dd
	qinq   = 0x88a8
	mpls   = 0x8847
	unused = 0x88b5 // local experimental (IEEE 802)
)

// frame returns an Ethernet frame with these EtherTypes before the payload. All but the last are
// VLAN tags.
func frame(payload []byte, types ...uint16) []byte {
	b := make([]byte, 12, 64)
	for i, typ := range types {
		b = binary.BigEndian.AppendUint16(b, typ)
		if i < len(types)-1 {
			b = binary.BigEndian.AppendUint16(b, 42) // the VLAN
		}
	}
	return append(b, payload...)
}

// packet returns an IP header of the family of src, followed by a few bytes.
func packet(src, dst string) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	if s.Is4() {
		b := make([]byte, 12, 28)
		b[0], b[3], b[8], b[9] = 0x45, 28, 64, 17
		b = append(append(b, s.AsSlice()...), d.AsSlice()...)
		return append(b, make([]byte, 8)...)
	}
	b := make([]byte, 8, 48)
	b[0], b[5], b[6], b[7] = 0x60, 8, 17, 64
	b = append(append(b, s.AsSlice()...), d.AsSlice()...)
	return append(b, make([]byte, 8)...)
}

// ip returns packet in a frame, with VLAN tags.
func ip(src, dst string, tags ...uint16) []byte {
	typ := uint16(ipv4)
	if netip.MustParseAddr(src).Is6() {
		typ = ipv6
	}
	return frame(packet(src, dst), append(slices.Clone(tags), typ)...)
}

// Addresses by role, for both families: pod, other pod, node, outside, LoadBalancer IP.
var families = []struct{ name, pod, pod2, node, out, vip string }{
	{"IPv4", "198.18.1.5", "198.18.2.9", "198.19.0.1", "198.19.128.1", "198.19.199.1"},
	{"IPv6", "fd42:1::5", "fd42:1:0:2::9", "fd42:9::1", "fd42:ff::1", "fd42:fd::1"},
}

var guards = []string{"guard_ingress", "guard_ingress_l3", "guard_egress", "guard_egress_l3"}

func TestGuardDropsPacketsOfTheCluster(t *testing.T) {
	l := load(t)
	const mark = abi.PodMark | 0x4000
	for _, f := range families {
		for _, c := range []struct {
			situation       string
			src, dst        string
			mark            uint32
			ingress, egress string
		}{
			{"outside to outside", f.out, f.out, 0, "", ""},
			{"outside to node", f.out, f.node, 0, "", ""},
			{"node to node", f.node, f.node, 0, "", ""},
			{"pod to outside, not translated", f.pod, f.out, 0, "src_in_range", "src_in_range"},
			{"outside to pod", f.out, f.pod, 0, "dst_in_range", "dst_in_range"},
			{"pod to pod", f.pod, f.pod2, 0, "src_in_range", "src_in_range"},
			{"node to pod", f.node, f.pod, 0, "dst_in_range", "dst_in_range"},
			{"marked: translated, to outside", f.node, f.out, mark, "", ""},
			{"marked: translated, to node", f.node, f.node, mark, "", "pod_to_node"},
			{"marked: translated, to pod", f.node, f.pod2, mark, "dst_in_range", "pod_to_range"},
			{"marked: pod to pod", f.pod, f.pod2, mark, "src_in_range", "pod_to_range"},
			{"marked: pod to node", f.pod, f.node, mark, "src_in_range", "pod_to_node"},
			{"outside to balancer", f.out, f.vip, 0, "", ""},
			{"marked: translated, to balancer", f.node, f.vip, mark, "", "pod_to_vip"},
			{"marked: pod to balancer", f.pod, f.vip, mark, "src_in_range", "pod_to_vip"},
			{"of a flow: answer to a balancer", f.node, f.vip, mark | abi.ServiceMark, "", ""},
			{"of a flow: to node", f.node, f.node, mark | abi.ServiceMark, "", "pod_to_node"},
			{"tunnel mark: node to node", f.node, f.node, abi.TunnelMark, "", ""},
		} {
			for _, prog := range guards {
				want := c.egress
				if prog == "guard_ingress" || prog == "guard_ingress_l3" {
					want = c.ingress
				}

				t.Run(fmt.Sprintf("%s/%s/%s", f.name, c.situation, prog), func(t *testing.T) {
					l.expect(t, prog, ip(c.src, c.dst), c.mark, want, c.mark)
				})
			}
		}
	}
}

func TestGuardKnowsAPodsPacketByItsLink(t *testing.T) {
	l := load(t)

	for _, f := range families {
		for _, c := range []struct {
			situation string
			src, dst  string
			mark      uint32
			link      uint32
			want      string
		}{
			{"pod's, mark gone, to node", f.out, f.node, 0, podLink, "pod_mark_lost"},
			{"pod's, another's mark, to node", f.out, f.node, 0x4000, podLink, "pod_mark_lost"},
			{"pod's, tunnels' mark, to node", f.out, f.node, abi.TunnelMark, podLink,
				"pod_mark_lost"},
			{"pod's, mark gone, to pod", f.out, f.pod, 0, podLink, "pod_mark_lost"},
			{"pod's, mark gone, to balancer", f.out, f.vip, 0, podLink, "pod_mark_lost"},
			{"pod's, mark gone, translated, to outside", f.node, f.out, 0, podLink, ""},
			{"pod's, mark gone, not translated", f.pod, f.out, 0, podLink, "src_in_range"},
			{"pod's, marked, to node", f.out, f.node, abi.PodMark, podLink, "pod_to_node"},
			{"router's, to node", f.out, f.node, 0, guardedLink, ""},
			{"router's, to balancer", f.out, f.vip, 0, guardedLink, ""},
			{"own, to node", f.out, f.node, 0, 0, ""},
		} {
			t.Run(f.name+"/"+c.situation, func(t *testing.T) {
				for _, prog := range []string{"guard_egress", "guard_egress_l3"} {
					if got := l.fate(t, prog, ip(c.src, c.dst), c.mark, c.link); got != c.want {
						t.Errorf("%s drops for %q, want %q", prog, got, c.want)
					}
				}
			})
		}
	}
}

// expect runs a program and expects a drop for the reason, or that the packet passes for "".
func (l loaded) expect(t *testing.T, prog string, frame []byte, mark uint32, wantReason string,
	wantMark uint32) {
	t.Helper()
	wantVerdict := next
	if wantReason != "" {
		wantVerdict = dropped
	}
	verdict, gotMark, reason := l.run(t, prog, frame, mark)
	if verdict != wantVerdict || reason != wantReason || gotMark != wantMark {
		t.Errorf("%s on %x: verdict %d, reason %q, mark %#x, want %d, %q, %#x", prog, frame,
			int32(verdict), reason, gotMark, int32(wantVerdict), wantReason, wantMark)
	}
}

func TestGuardReadsVLANStacks(t *testing.T) {
	l := load(t)
	for _, f := range families {
		for _, prog := range []string{"guard_ingress", "guard_egress"} {
			for _, tags := range [][]uint16{{vlan}, {qinq}, {qinq, vlan}, {vlan, vlan}} {
				l.expect(t, prog, ip(f.pod, f.out, tags...), 0, "src_in_range", 0)
				l.expect(t, prog, ip(f.out, f.node, tags...), 0, "", 0)
			}
			for _, tags := range [][]uint16{{vlan, vlan, vlan}, {qinq, qinq, vlan, vlan}} {
				l.expect(t, prog, ip(f.out, f.node, tags...), 0, "vlan_depth", 0)
			}
		}
	}
}

// TestTruncated takes packets that would pass and cuts them at every length of their headers. They
// have a VLAN tag, because the kernel's test run refuses short IP packets. pkg/guard sends short IP
// packets over real links.
func TestTruncated(t *testing.T) {
	l := load(t)
	const eth = 14
	for _, f := range families {
		header, reason := 20, "ipv4_truncated"
		if f.name == "IPv6" {
			header, reason = 40, "ipv6_truncated"
		}
		for _, tags := range [][]uint16{{vlan}, {qinq, vlan}} {
			start := eth + 4*len(tags)
			for n := eth + 1; n <= start+header; n++ {
				want := reason
				if n < start {
					want = "vlan_truncated"
				} else if n == start+header {
					want = ""
				}
				l.expect(t, "guard_ingress", ip(f.out, f.node, tags...)[:n], 0, want, 0)
				l.expect(t, "guard_egress", ip(f.out, f.node, tags...)[:n], 0, want, 0)
			}
		}
	}
}

func TestIPVersionMustBeWhatTheFrameSays(t *testing.T) {
	l := load(t)
	for _, prog := range guards {
		l.expect(t, prog, frame(packet("fd42:ff::1", "fd42:9::1"), ipv4), 0, "ip_version", 0)
		l.expect(t, prog, frame(append(packet("198.19.128.1", "198.19.0.1"), make([]byte, 40)...),
			ipv6), 0, "ip_version", 0)
	}
}

func TestOtherProtocolsPass(t *testing.T) {
	l := load(t)
	body := packet("198.18.1.1", "198.18.2.2") // as IP it would be dropped
	for _, typ := range []uint16{arp, mpls, unused, 0x0026 /* a length: LLC */} {
		for _, prog := range guards {
			l.expect(t, prog, frame(body, typ), abi.PodMark, "", abi.PodMark)
		}
		l.expect(t, "guard_ingress", frame(body, vlan, typ), 0, "", 0)
	}
}

// TestProgramsLeaveThePacketAlone checks that the programs do not rewrite packets.
func TestProgramsLeaveThePacketAlone(t *testing.T) {
	l := load(t)
	in := ip(families[0].out, families[0].node, vlan)
	for name, prog := range l.progs {
		out := make([]byte, len(in)+64)
		if _, err := prog.Run(&ebpf.RunOptions{Data: in, DataOut: out}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out[:len(in)], in) {
			t.Errorf("%s changed %x into %x", name, in, out[:len(in)])
		}
	}
}
