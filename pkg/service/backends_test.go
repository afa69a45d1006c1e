package service

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPackedRunIsTheRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ports := rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "ports")
		v6 := rapid.SampledFrom([]int{0, 0, 5}).Draw(t, "one of so many is IPv6")
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Backend {
			n := rapid.Uint32().Draw(t, "address")
			addr := binary.BigEndian.AppendUint32(nil, n)
			if v6 > 0 && n%uint32(v6) == 0 {
				addr = append(make([]byte, 12), addr...)
				addr[0] = 0xfd
			}
			a, _ := netip.AddrFromSlice(addr)
			b := BackendOf(netip.AddrPortFrom(a, uint16(8080+int(n)%ports)))
			b.Flags = rapid.SampledFrom([]uint16{0, 0, FlagLocal}).Draw(t, "flags")
			return b
		}), 0, 40).Draw(t, "backends")
		slices.SortFunc(list, CompareBackend)
		list = slices.CompactFunc(list, func(a, b Backend) bool {
			return CompareBackend(a,
				b) == 0
		})

		p := BackendsOf(list)
		if p.Len() != len(list) || !p.Equal(BackendsOf(slices.Clone(list))) {
			t.Fatalf("%d backends of %d", p.Len(), len(list))
		}
		from := rapid.IntRange(0, len(list)).Draw(t, "from")
		to := make([]Backend, rapid.IntRange(0, 50).Draw(t, "room"))
		want := list[from:min(len(list), from+len(to))]
		if n := p.Copy(to, from); !slices.Equal(to[:n], want) {
			t.Fatalf("copied %v, want %v", to[:n], want)
		}

		for i, b := range list {
			if p.At(i) != b || !p.Has(b) {
				t.Fatalf("backend %d is %v, want %v", i, p.At(i), b)
			}
			other := slices.Clone(list)
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				other[i].Flags ^= FlagLocal
			case 1:
				other[i].Addr[15]++
			case 2:
				other[i].Port[0]++
			case 3:
				other = slices.Delete(other, i, i+1)
			}
			if p.Equal(BackendsOf(other)) {
				t.Fatalf("%v equals %v", list, other)
			}
		}
	})
}

func TestPackedRunIsSmall(t *testing.T) {
	var list []Backend
	for i := range 1000 {
		list = append(list, BackendOf(netip.AddrPortFrom(
			netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 8080)))
	}
	list[7].Flags = FlagLocal
	if p := BackendsOf(list); len(p.addrs) != 1000 || len(p.local) != 1 || p.mixed != nil {
		t.Errorf("%d addresses, %d of this node, %d others", len(p.addrs), len(p.local),
			len(p.mixed))
	}
}
