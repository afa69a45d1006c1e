package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// plainHolding finds overlaps by comparing all pairs of prefixes.
type plainHolding []heldPrefix

func (h *plainHolding) overlaps(p netip.Prefix) (out []heldPrefix) {
	for _, x := range *h {
		if x.prefix.Overlaps(p) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b heldPrefix) int {
		return a.prefix.Addr().Compare(b.prefix.Addr())
	})
	return out
}

func (h *plainHolding) takePrefix(p netip.Prefix, node string) {
	if len(h.overlaps(p)) == 0 {
		*h = append(*h, heldPrefix{p, node})
	}
}

func TestHoldingFindsWhatComparingEachWithEachFinds(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		// IPv4, IPv6, and IPv4 in IPv6, which is IPv6 here; few addresses and lengths, so that many
		// overlap.
		last := byte(rapid.IntRange(0, 255).Draw(t, "last"))
		a := netip.AddrFrom4([4]byte{198, 18, 0, last})
		switch rapid.IntRange(0, 2).Draw(t, "family") {
		case 1:
			a = netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
		case 2:
			a = netip.AddrFrom16(a.As16())
		}
		return netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 9).Draw(t, "host bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		h, plain := newHolding(), &plainHolding{}
		for i := range rapid.IntRange(0, 40).Draw(t, "steps") {
			p := prefix.Draw(t, "prefix")
			if got, want := h.overlaps(p), plain.overlaps(p); !slices.Equal(got, want) {
				t.Fatalf("%s overlaps %v, want %v", p, got, want)
			}
			h.takePrefix(p, fmt.Sprint("node-", i))
			plain.takePrefix(p, fmt.Sprint("node-", i))
		}
	})
}
