package nodetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Datagram is a UDP packet in an Ethernet frame, for a raw socket. From and To are the addresses of
// the frame. Src and Dst are the addresses of the packet and have the same family.
type Datagram struct {
	From, To         net.HardwareAddr
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Payload          []byte
}

// Frame returns the bytes of the frame, with correct checksums.
func (d Datagram) Frame() []byte {
	udp := binary.BigEndian.AppendUint16(nil, d.SrcPort)
	udp = binary.BigEndian.AppendUint16(udp, d.DstPort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(d.Payload)))
	udp = append(append(udp, 0, 0), d.Payload...)
	pseudo := append(d.Src.AsSlice(), d.Dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(udp)))
	pseudo = append(pseudo, 0, 0, 0, 17)
	binary.BigEndian.PutUint16(udp[6:], Checksum(append(pseudo, udp...)))

	frame := append(append([]byte{}, d.To...), d.From...)
	if d.Src.Is4() {
		head := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0}
		binary.BigEndian.PutUint16(head[2:], uint16(20+len(udp)))
		head = append(append(head, d.Src.AsSlice()...), d.Dst.AsSlice()...)
		binary.BigEndian.PutUint16(head[10:], Checksum(head))
		return append(append(append(frame, 8, 0), head...), udp...)
	}
	head := []byte{0x60, 0, 0, 0, 0, 0, 17, 64}
	binary.BigEndian.PutUint16(head[4:], uint16(len(udp)))
	head = append(append(head, d.Src.AsSlice()...), d.Dst.AsSlice()...)
	return append(append(append(frame, 0x86, 0xdd), head...), udp...)
}

// TooBig returns a frame with an ICMP error from router to the sender of the datagram. It reports
// that the datagram is larger than mtu (RFC 1191, RFC 4443 section 3.2). The frame has the
// addresses From and To.
func (d Datagram) TooBig(router netip.Addr, mtu uint16) []byte {
	quoted := d
	quoted.From, quoted.To = make(net.HardwareAddr, 6), make(net.HardwareAddr, 6)
	quoted.Payload = make([]byte, 64)
	kind, code, proto := byte(3), byte(4), byte(1)
	if d.Src.Is6() {
		kind, code, proto = 2, 0, 58
	}
	icmp := binary.BigEndian.AppendUint16([]byte{kind, code, 0, 0, 0, 0}, mtu)
	icmp = append(icmp, quoted.Frame()[14:]...)

	frame := slices.Concat(d.To, d.From)
	if d.Src.Is4() {
		binary.BigEndian.PutUint16(icmp[2:], Checksum(icmp))
		head := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, proto, 0, 0}
		binary.BigEndian.PutUint16(head[2:], uint16(20+len(icmp)))
		head = slices.Concat(head, router.AsSlice(), d.Src.AsSlice())
		binary.BigEndian.PutUint16(head[10:], Checksum(head))
		return slices.Concat(frame, []byte{8, 0}, head, icmp)
	}
	ends := slices.Concat(router.AsSlice(), d.Src.AsSlice())
	pseudo := binary.BigEndian.AppendUint32(slices.Clone(ends), uint32(len(icmp)))
	pseudo = append(pseudo, 0, 0, 0, proto)
	binary.BigEndian.PutUint16(icmp[2:], Checksum(append(pseudo, icmp...)))
	head := []byte{0x60, 0, 0, 0, 0, 0, proto, 64}
	binary.BigEndian.PutUint16(head[4:], uint16(len(icmp)))
	return slices.Concat(frame, []byte{0x86, 0xdd}, head, ends, icmp)
}

// Checksum returns the Internet checksum of b (RFC 1071).
func Checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Inject sends frames unchanged on a link of a place.
func Inject(ctx context.Context, t *testing.T, at traffic.Place, link string, frames ...[]byte) {
	t.Helper()
	root, err := buildtree.Root()
	errtest.Must(t, err)
	for _, f := range frames {
		cmd := at.Command(ctx, filepath.Join(root, "out/bin/veil-tools"), "ethernet-send",
			"--link", link)
		cmd.Stdin = bytes.NewReader(f)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("send a frame on %s: %v: %s", link, err, out)
		}
	}
}

// Counted waits until got returns at least want, because the receiver may handle a sent packet
// later.
func Counted(ctx context.Context, t *testing.T, want uint64, got func() uint64) {
	t.Helper()
	err := lab.Until(ctx, 5*time.Second, func() error {
		if n := got(); n < want {
			return fmt.Errorf("%d packets were counted, %d were sent", n, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// LinkOf returns the hardware address and the MTU of a link in a place. The address of a TUN device
// is nil.
func LinkOf(ctx context.Context, t *testing.T, at traffic.Place, link string) (net.HardwareAddr,
	int) {
	t.Helper()
	var links []struct {
		Address string `json:"address"`
		MTU     int    `json:"mtu"`
	}
	IPJSON(ctx, t, at, &links, "link", "show", "dev", link)
	if len(links) != 1 {
		t.Fatalf("link %s: %+v", link, links)
	}
	hw, err := net.ParseMAC(links[0].Address)
	if err != nil {
		hw = nil // a TUN device has no address
	}
	return hw, links[0].MTU
}

// GatewayOf returns the hardware address to which a pod sends packets for its node.
func GatewayOf(ctx context.Context, t *testing.T, p *lab.Pod) net.HardwareAddr {
	t.Helper()
	var neighbours []struct {
		LLAddr string `json:"lladdr"`
	}
	IPJSON(ctx, t, p, &neighbours, "neigh", "show", "nud", "permanent", "dev", "eth0")
	if len(neighbours) == 0 {
		t.Fatal("the pod has no permanent neighbour")
	}
	hw, err := net.ParseMAC(neighbours[0].LLAddr)
	errtest.Must(t, err)
	return hw
}

// IPJSON runs ip(8) with -j in a place and decodes its output into v.
func IPJSON(ctx context.Context, t *testing.T, at traffic.Place, v any, args ...string) {
	t.Helper()
	out, err := at.Command(ctx, "ip", append([]string{"-j"}, args...)...).Output()
	if err != nil {
		t.Fatalf("ip %v: %v", args, err)
	}
	if err := json.Unmarshal(out, v); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}
