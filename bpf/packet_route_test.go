package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// redirected is TC_ACT_REDIRECT (include/uapi/linux/pkt_cls.h).
const redirected uint32 = 7

// Flags of lib/service/route.h.
const (
	routePod  = uint8(1)
	routeFrom = uint8(4)
)

// withOptions adds IPv4 options to the header of a frame.
func withOptions(in, options []byte) []byte {
	h := bytes.Clone(in[ethernet : ethernet+20])
	h[0] += byte(len(options) / 4)
	binary.BigEndian.PutUint16(h[2:], binary.BigEndian.Uint16(h[2:])+uint16(len(options)))
	h[10], h[11] = 0, 0
	h = append(h, options...)
	binary.BigEndian.PutUint16(h[10:], ^sum(h))
	return append(append(bytes.Clone(in[:ethernet]), h...), in[ethernet+20:]...)
}

// TestPacketsWithOptionsTakeTheSlowPath sends from a pod to another of the node, on the fast path.
func TestPacketsWithOptionsTakeTheSlowPath(t *testing.T) {
	coll := packets(t)
	links := linksFor(t, coll)
	for _, f := range labAddrs {
		to := netip.MustParseAddr(f.pod2)
		nettest.AddRoute(t, links.ns, netip.PrefixFrom(to, to.BitLen()), netip.Addr{}, "vother")
		links.ns.Run(t, func() error {
			return exec.Command("ip", "neigh", "replace", f.pod2, "dev", "vother", "nud",
				"permanent").Run()
		})
	}

	for link, how := range map[uint32]uint8{links.own: routeFrom, links.other: routePod} {
		errtest.Must(t, coll.Maps["service_routes"].Put(link, how))
	}

	for _, f := range labAddrs {
		for proto, port := range map[byte]uint16{unix.IPPROTO_TCP: 8080, unix.IPPROTO_UDP: 5353} {
			in := segment(at(f.pod1, 40000), at(f.pod2, port), proto, tcpSYN, "")
			verdict, _, _, err := runPacket(t, coll, "service_pod_in", in, 0)
			if err != nil || verdict != redirected {
				t.Fatalf("%s, protocol %d: verdict %d, %v, want %d", f.name, proto, int32(verdict),
					err, redirected)
			}
			if f.name == "IPv6" {
				continue // its options are extension headers, behind which no ports are read
			}

			for option, bytes := range map[string][]byte{
				"no operation":       {1, 1, 1, 0},
				"record route":       {7, 7, 4, 0, 0, 0, 0, 0},
				"timestamp":          {68, 8, 5, 0, 0, 0, 0, 0},
				"loose source route": {131, 7, 4, 198, 18, 2, 5, 0},
			} {
				t.Run(option, func(t *testing.T) {
					expectAlone(t, coll, "service_pod_in", withOptions(in, bytes))
				})
			}
		}
	}
}
