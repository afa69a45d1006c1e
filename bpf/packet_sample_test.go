package bpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// sampled returns the reasons of the samples in the ring, and the destinations of their packets.
func sampled(t *testing.T, coll *ebpf.Collection) (reasons []uint32, to []netip.AddrPort) {
	t.Helper()
	r, err := ringbuf.NewReader(coll.Maps["drop_samples"])
	errtest.Must(t, err)
	defer r.Close()
	for r.AvailableBytes() > 0 {
		record, err := r.Read()
		errtest.Must(t, err)
		b := record.RawSample
		reasons = append(reasons, binary.NativeEndian.Uint32(b[8:]))
		headers := b[24 : 24+binary.NativeEndian.Uint16(b[22:])]
		_, rest, _, dst, _ := splitIP(headers, headers[0]>>4 == 6)
		to = append(to, netip.AddrPortFrom(dst, binary.BigEndian.Uint16(rest[2:])))
	}
	return reasons, to
}

// A packet that a service refuses is sampled once, with the address of the service. A packet that
// goes to a backend is not.
func TestRefusalsOfServicesAreSampled(t *testing.T) {
	for i, a := range labAddrs {
		vip := func(n int) string {
			return [][]string{{"198.19.200.1", "198.19.200.2", "198.19.200.3", "198.19.200.4"},
				{"fd42:fe::1", "fd42:fe::2", "fd42:fe::3", "fd42:fe::4"}}[i][n]
		}
		l := &lab{coll: packets(t)}
		setSelf(t, l.coll, uint32(i), a.self)
		setSelf(t, l.coll, uint32(2+i), a.node)
		l.serve(t,
			labService{name: "empty", vips: []string{vip(0)}},
			labService{name: "elsewhere", vips: []string{vip(1)}, pods: []string{"2"}, local: true},
			labService{name: "closed", vips: []string{vip(2)}, pods: []string{"1"},
				sources: nettest.Prefixes("198.19.129.0/24", "fd42:fd::/64")},
			labService{name: "open", vips: []string{vip(3)}, pods: []string{"1"}})

		for n, want := range []uint32{packetRefused, packetLocal, packetSource, 0} {
			before := counted(t, l.coll, want)
			for _, flags := range []byte{tcpSYN, tcpACK} {
				_, _, _, err := runPacket(t, l.coll, "service_in",
					segment(at(a.client, 40000), at(vip(n), 80), unix.IPPROTO_TCP, flags, ""), 0)
				errtest.Must(t, err)
			}

			reasons, to := sampled(t, l.coll)
			if want == 0 {
				if len(reasons) > 0 {
					t.Errorf("%s: a packet to a backend is sampled for %v", a.name, reasons)
				}
				continue
			}
			if !slices.Equal(reasons, []uint32{SampledService + want}) ||
				to[0] != at(vip(n), 80) || counted(t, l.coll, want) != before+1 {
				t.Errorf("%s: samples for %v to %v, want one for %d to %s", a.name, reasons, to,
					SampledService+want, vip(n))
			}
		}
	}
}
