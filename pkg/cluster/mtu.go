package cluster

import (
	"errors"
	"fmt"
)

// Sizes of headers, bytes.
const (
	headerIPv4 = 20 // RFC 791 section 3.1, without options
	headerIPv6 = 40 // RFC 8200 section 3, without extension headers
	headerUDP  = 8  // RFC 768
	// headerWireGuard is a transport data message without its payload: type and reserved 4,
	// receiver 4, counter 8, Poly1305 tag 16 (WireGuard paper, section 5.4.6). The payload is
	// padded to 16, but never beyond the device's MTU (calculate_skb_padding in
	// drivers/net/wireguard/send.c; calculatePaddingSize in wireguard-go). So padding does not
	// count here.
	headerWireGuard = 32
)

// Padding is the multiple, in bytes, to which WireGuard pads a payload (WireGuard paper, section
// 5.4.6).
const Padding = 16

// Limits of an MTU, bytes. Both minima are multiples of Padding.
const (
	// MinMTU6 is the smallest MTU of a link that carries IPv6 (RFC 8200 section 5).
	MinMTU6 = 1280
	// MinMTU4 is the smallest MTU that Kubeveil sets on a link that carries IPv4. It is the size of
	// the datagram that every host must accept (RFC 791 section 3.1, RFC 1122 section 3.3.2). IPv4
	// itself allows 68, but TCP's default segment needs 576.
	MinMTU4 = 576
	// MaxMTU is the largest IPv4 packet (RFC 791 section 3.1) and the largest MTU of Ethernet and
	// TUN devices in Linux.
	MaxMTU = 65535
)

// ErrMTU matches the errors of TunnelMTU.
var ErrMTU = errors.New("MTU cannot work")

// Families is a set of address families.
type Families struct {
	V4 bool `json:"v4"`
	V6 bool `json:"v6"`
}

// OuterOverhead returns the number of bytes that the tunnel adds to a packet: the outer IP header,
// UDP and WireGuard. It is 60 over IPv4 and 80 over IPv6.
func OuterOverhead(outer6 bool) int {
	ip := headerIPv4
	if outer6 {
		ip = headerIPv6
	}
	return ip + headerUDP + headerWireGuard
}

// TunnelMTU returns the MTU in bytes of the tunnel device and of pods, over an underlay with
// underlayMTU and outer packets of IPv6 or IPv4. inside holds the families of pods; if it is empty,
// only the underlay is checked. The error matches ErrMTU and names a value that works.
func TunnelMTU(underlayMTU int, outer6 bool, inside Families) (int, error) {
	inner := underlayMTU - OuterOverhead(outer6)
	switch {
	case underlayMTU > MaxMTU:
		return 0, fmt.Errorf("%w: an underlay of %d bytes is above %d, the largest packet there is",
			ErrMTU, underlayMTU, MaxMTU)
	case outer6 && underlayMTU < MinMTU6:
		return 0, fmt.Errorf("%w: the underlay has %d bytes, but IPv6 outside needs %d (RFC 8200 "+
			"section 5); raise its MTU or use IPv4 outside", ErrMTU, underlayMTU, MinMTU6)
	case inside.V6 && inner < MinMTU6:
		return 0, fmt.Errorf("%w: %d bytes of underlay less %s are %d, but IPv6 needs %d: "+
			"raise the underlay's MTU to %d or more, or use IPv4 pods",
			ErrMTU, underlayMTU, overheadName(outer6), inner, MinMTU6,
			MinUnderlayMTU(outer6, inside))
	case inner < MinMTU4:
		return 0, fmt.Errorf("%w: %d bytes of underlay less %s are %d, but a pod needs %d: "+
			"raise the underlay's MTU to %d or more",
			ErrMTU, underlayMTU, overheadName(outer6), inner, MinMTU4,
			MinUnderlayMTU(outer6, inside))
	}
	return inner, nil
}

// MinUnderlayMTU returns the smallest underlay MTU that TunnelMTU accepts, bytes.
func MinUnderlayMTU(outer6 bool, inside Families) int {
	inner := MinMTU4
	if inside.V6 {
		inner = MinMTU6
	}
	least := inner + OuterOverhead(outer6)
	if outer6 {
		least = max(least, MinMTU6)
	}
	return least
}

// MTULine is one line of the arithmetic of an MTU.
type MTULine struct {
	// Bytes is the number of bytes; it is negative for a header.
	Bytes int `json:"bytes"`
	// What describes the line, such as "UDP header".
	What string `json:"what"`
}

// ExplainMTU returns the arithmetic of TunnelMTU line by line: first the underlay, last the result.
// It also does so for an underlay that TunnelMTU refuses.
func ExplainMTU(underlayMTU int, outer6 bool) []MTULine {
	ip := MTULine{-headerIPv4, "outer IPv4 header"}
	if outer6 {
		ip = MTULine{-headerIPv6, "outer IPv6 header"}
	}
	return []MTULine{
		{underlayMTU, "underlay MTU"},
		ip,
		{-headerUDP, "UDP header"},
		{-headerWireGuard, "WireGuard header and tag"},
		{underlayMTU - OuterOverhead(outer6), "tunnel and pod MTU"},
	}
}

func overheadName(outer6 bool) string {
	family := "IPv4"
	if outer6 {
		family = "IPv6"
	}
	return fmt.Sprintf("WireGuard over %s (%d)", family, OuterOverhead(outer6))
}
