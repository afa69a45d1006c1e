package nettest

import "net/netip"

// Prefixes parses prefixes. It panics at a text that is not one.
func Prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Addrs parses addresses. It panics at a text that is not one.
func Addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// AddrPorts parses addresses with ports.
func AddrPorts(text ...string) (all []netip.AddrPort) {
	for _, s := range text {
		all = append(all, netip.MustParseAddrPort(s))
	}
	return all
}
