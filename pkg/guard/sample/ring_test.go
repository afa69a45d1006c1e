package sample

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const patience = 10 * time.Second

// guarded holds the guard's programs for links with Ethernet headers, with pods in 198.18.0.0/16
// and fd42:1::/48.
type guarded struct {
	*ebpf.Collection
	ring Ring
}

// load loads a program. samples is the size of its ring; 0 means the size in production.
func load(t *testing.T, specOf func() (*ebpf.CollectionSpec, error), samples uint32) guarded {
	t.Helper()
	nettest.NeedBPF(t)
	errtest.Must(t, rlimit.RemoveMemlock())
	spec, err := specOf()
	errtest.Must(t, err)
	if samples > 0 {
		spec.Maps[abi.PinSamples].MaxEntries = samples
	}
	if mark := spec.Variables["pod_mark"]; mark != nil {
		errtest.Must(t, mark.Set(uint32(abi.PodMark)))
	}
	c, err := ebpf.NewCollection(spec)
	errtest.Must(t, err)
	t.Cleanup(c.Close)
	type rangeKey struct {
		Bits uint32
		Addr [16]byte
	}
	for _, r := range []rangeKey{{96 + 16, netip.MustParseAddr("198.18.0.0").As16()},
		{48, netip.MustParseAddr("fd42:1::").As16()}} {
		errtest.Must(t, c.Maps[abi.PinRanges].Put(r, uint8(1)))
	}
	return guarded{c, Ring{Samples: c.Maps[abi.PinSamples], Limits: c.Maps[abi.PinLimits]}}
}

// skb is struct __sk_buff (include/uapi/linux/bpf.h).
type skb struct {
	_, _, Mark     uint32
	_              [6]uint32
	IngressIfindex uint32
	_              [38]uint32
}

// run runs a program this many times on a frame that came in by a link.
func (g guarded) run(t *testing.T, prog string, frame []byte, link uint32, times int) {
	t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64),
		Context: skb{IngressIfindex: link}}
	for range times { // Repeat would begin again after a signal.
		_, err := g.Programs[prog].Run(&opts)
		errtest.Must(t, err)
	}
}

// dropped returns how many packets were counted for a reason.
func (g guarded) dropped(t *testing.T, reason string) (n uint64) {
	t.Helper()
	i := slices.IndexFunc(bpf.Reasons, func(r bpf.Reason) bool { return r.Name == reason })
	var perCPU []uint64
	errtest.Must(t, g.Maps[abi.PinDrops].Lookup(bpf.Reasons[i].Number, &perCPU))
	for _, c := range perCPU {
		n += c
	}
	return n
}

// written returns how many samples programs have written for a reason.
func (g guarded) written(t *testing.T, reason string) uint64 {
	t.Helper()
	all, err := g.ring.Written()
	errtest.Must(t, err)
	return all[reason]
}

// read returns the samples in the ring.
func (g guarded) read(t *testing.T) (all []Sample) {
	t.Helper()
	r, err := g.ring.Open()
	errtest.Must(t, err)
	defer r.Close()
	errtest.Must(t, r.Waiting(func(s Sample) { all = append(all, s) }))
	return all
}

// frame returns a frame with VLAN tags and a datagram.
func frame(src, dst string, tags int) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	b := make([]byte, 12, 128)
	for range tags {
		b = binary.BigEndian.AppendUint32(b, unix.ETH_P_8021Q<<16|42)
	}
	if s.Is4() {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
		b = append(b, 0x46, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
		b = append(append(b, s.AsSlice()...), d.AsSlice()...)
		b = append(b, 1, 1, 1, 1) // options
	} else {
		b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IPV6)
		b = append(b, 0x60, 0, 0, 0, 0, 16, unix.IPPROTO_UDP, 64)
		b = append(append(b, s.AsSlice()...), d.AsSlice()...)
	}
	b = append(b, 0x10, 0, 0x20, 0, 0, 16, 0, 0)
	return append(b, "secret!!"...)
}

// A sample has the addresses and ports of its packet, and no bytes behind the ports.
func TestDropIsSampledWithItsHeaders(t *testing.T) {
	const lo, podLink = 1, 9
	for _, c := range []struct {
		load     func() (*ebpf.CollectionSpec, error)
		prog     string
		src, dst string
		tags     int
		link     uint32
		reason   string
		in, out  int
	}{
		{bpf.LoadGuardIngress, "guard_ingress", "198.18.1.5", "192.0.2.1", 0, lo, "src_in_range", lo, 0},
		{bpf.LoadGuardIngress, "guard_ingress", "192.0.2.1", "198.18.1.5", 0, lo, "dst_in_range", lo, 0},
		{bpf.LoadGuardIngress, "guard_ingress", "fd42:1::5", "fd42:ff::1", 0, lo, "src_in_range", lo, 0},
		{bpf.LoadGuardIngress, "guard_ingress", "198.18.1.5", "192.0.2.1", 2, lo, "src_in_range", lo, 0},
		{bpf.LoadGuardEgress, "guard_egress", "192.0.2.1", "198.18.1.5", 0, 0, "dst_in_range", 0, lo},
		{bpf.LoadGuardEgress, "guard_egress", "192.0.2.1", "198.18.1.5", 0, podLink, "pod_mark_lost",
			podLink, lo},
		{bpf.LoadGuardEgress, "guard_egress", "fd42:ff::1", "fd42:1::5", 1, podLink, "pod_mark_lost",
			podLink, lo},
	} {
		t.Run(fmt.Sprint(c.prog, " ", c.src, " ", c.dst, " ", c.tags), func(t *testing.T) {
			g := load(t, c.load, 0)
			before := time.Now()
			g.run(t, c.prog, frame(c.src, c.dst, c.tags), c.link, 1)

			all := g.read(t)
			if len(all) != 1 || g.dropped(t, c.reason) != 1 || g.written(t, c.reason) != 1 {
				t.Fatalf("%d samples %+v of %d drops", len(all), all, g.dropped(t, c.reason))
			}
			s, length := all[0], 40
			if netip.MustParseAddr(c.src).Is6() {
				length = 56
			}
			if s.Prefix != c.reason || s.In != c.in || s.Out != c.out || s.ARP ||
				s.Src.String() != c.src || s.Dst.String() != c.dst || s.SrcPort != 0x1000 ||
				s.DstPort != 0x2000 || s.Proto != unix.IPPROTO_UDP || s.Length != length {
				t.Errorf("sample %+v, want the fields of the packet", s)
			}
			if d := s.Time.Sub(before); d < -time.Second || d > patience {
				t.Errorf("dropped %v after the packet was sent", d)
			}
		})
	}
}

// A packet that is not dropped changes no share, no limit and no sample.
func TestPassedPacketLeavesNoTrace(t *testing.T) {
	for prog, specOf := range map[string]func() (*ebpf.CollectionSpec, error){
		"guard_ingress": bpf.LoadGuardIngress, "guard_egress": bpf.LoadGuardEgress} {
		g := load(t, specOf, 0)
		trace := func() (changed int) {
			var share struct{ Reason, Link uint32 }
			var due uint64
			for all := g.Maps[abi.PinShares].Iterate(); all.Next(&share, &due); {
				changed++
			}
			var reason uint32
			var limit [3]uint64
			for all := g.ring.Limits.Iterate(); all.Next(&reason, &limit); {
				if limit != [3]uint64{} {
					changed++
				}
			}
			return changed + len(g.read(t))
		}
		g.run(t, prog, frame("192.0.2.1", "192.0.2.2", 0), 9, 3)
		if n := trace(); n != 0 {
			t.Errorf("%s: packets that pass change %d entries", prog, n)
		}
		g.run(t, prog, frame("192.0.2.1", "198.18.1.5", 0), 9, 1)
		if n := trace(); n != 3 {
			t.Errorf("%s: a packet that is dropped changes %d entries, want 3", prog, n)
		}
	}
}

// An ARP message is sampled with its addresses. A packet without a readable header has none.
func TestSampleOfWhatIsNotIP(t *testing.T) {
	g := load(t, bpf.LoadGuardEgress, 0)
	arp := make([]byte, 12, 64)
	arp = append(arp, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1)
	arp = append(arp, 0, 0, 0, 0, 0, 0, 198, 18, 1, 5)
	g.run(t, "guard_egress", arp, 0, 1)
	g.run(t, "guard_egress", frame("192.0.2.1", "198.18.1.5", 4), 0, 1)
	g.run(t, "guard_egress", frame("192.0.2.1", "198.18.1.5", 1)[:14+4+19], 0, 1)

	all := g.read(t)
	if len(all) != 3 {
		t.Fatalf("samples %+v, want 3", all)
	}
	if s := all[0]; s.Prefix != "neighbour_in_range" || !s.ARP || s.Src.String() != "192.0.2.1" ||
		s.Dst.String() != "198.18.1.5" {
		t.Errorf("sample of ARP: %+v", s)
	}
	for i, reason := range map[int]string{1: "vlan_depth", 2: "ipv4_truncated"} {
		if s := all[i]; s.Prefix != reason || s.Src.IsValid() || s.ARP {
			t.Errorf("%+v, want %s without addresses", s, reason)
		}
	}
}

// While one link floods, packets of other links are still sampled. Each packet is counted.
func TestFloodOfOneLinkLeavesRoomForOthers(t *testing.T) {
	g := load(t, bpf.LoadGuardIngress, 0)
	forged := frame("198.18.1.5", "192.0.2.1", 0)
	const flood, others, scanner = 60_000, 30, 7
	began := time.Now()
	for i := range others {
		g.run(t, "guard_ingress", forged, scanner, flood/others)
		g.run(t, "guard_ingress", forged, uint32(100+i), 1)
	}
	took := time.Since(began)

	byLink := map[int]int{}
	for _, s := range g.read(t) {
		byLink[s.In]++
	}
	if n := byLink[scanner]; n == 0 || n > 10+2*int(took/time.Second+1) {
		t.Errorf("%d samples of the scanner in %v", n, took)
	}
	if len(byLink) != 1+others {
		t.Errorf("samples of %d links, want %d", len(byLink), 1+others)
	}
	if n := g.dropped(t, "src_in_range"); n != flood+others {
		t.Errorf("%d packets are counted, want %d", n, flood+others)
	}
	t.Logf("%d packets dropped in %v, %d samples", flood+others, took, g.written(t, "src_in_range"))
}

// Packets come in by more links than there are samples per second.
func TestNoSecondHasMoreSamplesThanTheLimit(t *testing.T) {
	g := load(t, bpf.LoadGuardIngress, 0)
	forged := frame("198.18.1.5", "192.0.2.1", 0)
	var sent uint64
	for began := time.Now(); time.Since(began) < 1500*time.Millisecond; sent += 20 {
		g.run(t, "guard_ingress", forged, uint32(100+sent/20%4000), 20)
	}
	all := g.read(t)
	for i, s := range all {
		within := 0
		for _, later := range all[i:] {
			if later.Time.Sub(s.Time) < time.Second {
				within++
			}
		}
		if within > 100 {
			t.Fatalf("%d samples within a second", within)
		}
	}
	n := uint64(len(all))
	if n < 75 || n != g.written(t, "src_in_range") || g.dropped(t, "src_in_range") != sent {
		t.Errorf("%d samples, %d written, %d of %d packets counted", n,
			g.written(t, "src_in_range"), g.dropped(t, "src_in_range"), sent)
	}
}

// Without a reader, samples stay in the ring until it is full. Each is read once, also if the
// reader changes.
func TestSamplesWaitForTheirReader(t *testing.T) {
	const room = 4096 / (sampleSize + 8)
	g := load(t, bpf.LoadGuardIngress, 4096)
	forged := frame("198.18.1.5", "192.0.2.1", 0)
	const links = 45
	for link := range links {
		g.run(t, "guard_ingress", forged, uint32(100+link), 1)
	}
	if n := g.written(t, "src_in_range"); n != room {
		t.Errorf("%d samples wait, want %d", n, room)
	}

	all := g.read(t)
	for i, s := range all {
		if s.In != 100+i {
			t.Fatalf("sample %d is of link %d", i, s.In)
		}
	}
	if len(all) != room || len(g.read(t)) != 0 {
		t.Errorf("%d samples are read, want %d, each once", len(all), room)
	}
	r, err := g.ring.Open()
	errtest.Must(t, err)
	defer r.Close()
	errtest.Must(t, r.Waiting(func(s Sample) { t.Errorf("%+v waits", s) }))
	g.run(t, "guard_ingress", forged, 99, 1)
	if s, err := r.Read(); err != nil || s.In != 99 {
		t.Errorf("sample after the wait: %+v, %v", s, err)
	}
	if n := g.dropped(t, "src_in_range"); n != links+1 {
		t.Errorf("%d packets are counted", n)
	}
}

func TestSampleOfAnotherVersionIsLeftOut(t *testing.T) {
	if _, ok := read(make([]byte, sampleSize-8)); ok {
		t.Error("a short sample is read")
	}
	b := make([]byte, sampleSize)
	binary.NativeEndian.PutUint32(b[8:], 77)
	binary.NativeEndian.PutUint16(b[22:], 0xffff)
	if s, ok := read(b); !ok || s.Prefix != "reason 77" || s.Src.IsValid() {
		t.Errorf("sample with an unknown reason: %+v, %v", s, ok)
	}
}

// A refusal at a socket has the service, and the network namespace of the socket.
func TestSampleOfASocket(t *testing.T) {
	b := make([]byte, sampleSize)
	i := slices.IndexFunc(bpf.ServiceCounts, bpf.ServiceCount.IsOfSocket)
	for bpf.ServiceCounts[i].Reason() == "" {
		i++
	}
	binary.NativeEndian.PutUint32(b[8:], bpf.SampledService+uint32(i))
	if _, ok := read(b); ok {
		t.Error("a sample without a socket is read")
	}

	binary.NativeEndian.PutUint16(b[22:], socketSize)
	binary.NativeEndian.PutUint64(b[24:], 5000)
	to := netip.MustParseAddr("198.18.0.3").As16()
	copy(b[32:], to[:])
	binary.BigEndian.PutUint16(b[48:], 53)
	b[50] = unix.IPPROTO_UDP
	s, ok := read(b)
	if !ok || s.Prefix != "service_no_backend" || s.Netns != 5000 || s.In != 0 ||
		s.Src.IsValid() || s.Dst.String() != "198.18.0.3" || s.DstPort != 53 ||
		s.Proto != unix.IPPROTO_UDP {
		t.Errorf("sample of a socket: %+v, %v", s, ok)
	}
}

// FuzzRead reads any bytes.
func FuzzRead(f *testing.F) {
	f.Add(make([]byte, sampleSize))
	f.Fuzz(func(_ *testing.T, b []byte) { read(b) })
}
