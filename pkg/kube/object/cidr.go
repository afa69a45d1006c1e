package object

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseCIDR parses a CIDR as the API server and kube-proxy do (ParseCIDRSloppy of
// k8s.io/utils/net): decimal numbers of an IPv4 address may have leading zeros. Older API servers
// store such addresses.
func ParseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil || strings.Contains(text, ":") {
		return p, err
	}
	addr, bits, _ := strings.Cut(text, "/")
	octets := strings.Split(addr, ".")
	for i, o := range octets {
		octets[i] = withoutZeros(o)
	}
	if sloppy, ok := netip.ParsePrefix(strings.Join(octets, ".") + "/" + bits); ok == nil {
		return sloppy, nil
	}
	return p, err
}

// withoutZeros returns a decimal number without leading zeros.
func withoutZeros(number string) string {
	if short := strings.TrimLeft(number, "0"); short != "" {
		return short
	}
	return number[:min(len(number), 1)]
}

// ParsePrefix parses a prefix, and refuses one with host bits set and an IPv4-mapped one.
func ParsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p != p.Masked() || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q has host bits set, want %s", text, p.Masked())
	}
	return p, nil
}
