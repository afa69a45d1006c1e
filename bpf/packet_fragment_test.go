package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// fragments returns the two fragments of a packet in a frame. The first has firstBytes bytes behind
// the IP headers.
func fragments(whole []byte, id uint32) [2][]byte {
	const firstBytes, more, nextFragment = 1200, 1, 44
	var parts [2][]byte
	six := whole[ethernet]>>4 == 6
	h := ethernet + 20
	if six {
		h = ethernet + 40
	}

	for i, body := range [2][]byte{whole[h : h+firstBytes], whole[h+firstBytes:]} {
		f := bytes.Clone(whole[:h])
		offset := uint16(i * firstBytes / 8)
		if six {
			extra := []byte{f[ethernet+6], 0, 0, 0, 0, 0, 0, 0}
			binary.BigEndian.PutUint16(extra[2:], offset<<3|uint16(1-i))
			binary.BigEndian.PutUint32(extra[4:], id)
			f[ethernet+6] = nextFragment
			binary.BigEndian.PutUint16(f[ethernet+4:], uint16(len(extra)+len(body)))
			f = append(f, extra...)
		} else {
			ip := f[ethernet:]
			binary.BigEndian.PutUint16(ip[2:], uint16(20+len(body)))
			binary.BigEndian.PutUint16(ip[4:], uint16(id))
			binary.BigEndian.PutUint16(ip[6:], uint16(1-i)*more<<13|offset)
			binary.BigEndian.PutUint16(ip[10:], 0)
			binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
		}
		parts[i] = append(f, body...)
	}

	return parts
}

// large returns the fragments of a datagram.
func large(from, to netip.AddrPort, id uint32) [2][]byte {
	return fragments(segment(from, to, unix.IPPROTO_UDP, 0, strings.Repeat("large", 400)), id)
}

// TestFragmentsOfDatagramsAreTranslated sends a datagram in two fragments to a service and back,
// with and without SNAT. The checksum of UDP, which is in the first one, is of the whole datagram.
func TestFragmentsOfDatagramsAreTranslated(t *testing.T) {
	for _, a := range labAddrs {
		coll := served(t)
		client := at(a.client, 40000)
		pass := func(prog string, in, want [2][]byte, mark, wantMark uint32) {
			t.Helper()
			for i := range in {
				expectPacket(t, coll, prog, in[i], want[i], mark, wantMark)
			}
		}

		t.Run(a.name+"/keeps its source", func(t *testing.T) {
			node, pod := at(a.node, 30081), at(a.pod1, 5353)
			pass("service_in", large(client, node, 7), large(client, pod, 7), 0, servedMark)
			pass("service_pod_out", large(client, pod, 7), large(client, pod, 7), servedMark,
				servedMark)
			reply := large(pod, client, 8)
			pass("service_pod_in", reply, reply, 0, abi.ServiceMark)
			pass("service_out", reply, large(node, client, 8), servedMark, servedMark)
		})

		t.Run(a.name+"/with SNAT", func(t *testing.T) {
			node, pod := at(a.node, 30091), at(a.pod2, 5353)
			pass("service_in", large(client, node, 7), large(client, pod, 7), 0, servedMark)
			sent := large(client, pod, 7)
			first, _ := passed(t, coll, "service_pod_out", sent[0], servedMark)
			ports := ethernet + 20
			if client.Addr().Is6() {
				ports = ethernet + 48
			}
			self := at(a.self, binary.BigEndian.Uint16(first[ports:]))
			pass("service_pod_out", sent, large(self, pod, 7), servedMark, servedMark)
			pass("service_pod_in", large(pod, self, 9), large(pod, client, 9), 0, abi.ServiceMark)
			pass("service_out", large(pod, client, 9), large(node, client, 9), servedMark,
				servedMark)
		})
	}
}

// TestFragmentsWithoutTheFirstAreNotTranslated checks that a fragment that overtakes the first one
// is dropped and counted if only services have its destination, and is left alone otherwise.
func TestFragmentsWithoutTheFirstAreNotTranslated(t *testing.T) {
	for _, a := range labAddrs {
		l := &lab{coll: packets(t)}
		l.serve(t, labService{name: "one", nodePort: 30080, vips: []string{a.vip},
			pods: []string{"1"}})
		errtest.Must(t, l.coll.Maps["vips"].Put(nettest.Addrs(a.vip)[0].As16(), uint8(1)))
		client := at(a.client, 40000)
		expectAlone(t, l.coll, "service_in", large(client, at(a.node, 30081), 7)[1])

		before := counted(t, l.coll, packetFragment)
		parts := large(client, at(a.vip, 53), 7)
		if verdict, _, _, err := runPacket(t, l.coll, "service_in", parts[1], 0); err != nil ||
			verdict != dropped || counted(t, l.coll, packetFragment) != before+1 {
			t.Errorf("%s: verdict %d, %v, counted %d", a.name, int32(verdict), err,
				counted(t, l.coll, packetFragment))
		}

		want := large(client, at(a.pod1, 5353), 7)
		for i, in := range parts {
			expectPacket(t, l.coll, "service_in", in, want[i], 0, servedMark)
		}
		// Fragments of another datagram, client or protocol are not of this one.
		for _, other := range [][]byte{large(client, at(a.vip, 53), 8)[1],
			large(at(a.other, 40000), at(a.vip, 53), 7)[1]} {
			if verdict, _, _, err := runPacket(t, l.coll, "service_in", other, 0); err != nil ||
				verdict != dropped {
				t.Errorf("%s: verdict %d, %v", a.name, int32(verdict), err)
			}
		}
	}
}
