package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

var (
	onlyV4 = cluster.Families{V4: true}
	onlyV6 = cluster.Families{V6: true}
	dual   = cluster.Families{V4: true, V6: true}
)

func TestTunnelMTU(t *testing.T) {
	for name, c := range map[string]struct {
		underlay int
		outer6   bool
		inside   cluster.Families
		want     int
		problem  string
	}{
		"Ethernet, IPv4 outside":        {1500, false, dual, 1440, ""},
		"Ethernet, IPv6 outside":        {1500, true, dual, 1420, ""},
		"jumbo frames":                  {9000, false, onlyV4, 8940, ""},
		"largest cloud frames":          {9216, true, dual, 9136, ""},
		"least for IPv6 pods over IPv4": {1340, false, onlyV6, 1280, ""},
		"one too few for IPv6 pods over IPv4": {1339, false, dual, 0,
			"raise the underlay's MTU to 1340"},
		"least for IPv6 pods over IPv6": {1360, true, onlyV6, 1280, ""},
		"one too few for IPv6 pods over IPv6": {1359, true, dual, 0,
			"raise the underlay's MTU to 1360"},
		"IPv4 pods where IPv6 pods cannot be": {1339, false, onlyV4, 1279, ""},
		"least for IPv4 pods over IPv4":       {636, false, onlyV4, 576, ""},
		"one too few for IPv4 pods over IPv4": {635, false, onlyV4, 0,
			"raise the underlay's MTU to 636"},
		"IPv6 outside where it may not be":      {1279, true, onlyV4, 0, "IPv6 outside needs 1280"},
		"least for IPv6 outside with IPv4 pods": {1280, true, onlyV4, 1200, ""},
		"largest":                               {65535, false, onlyV4, 65475, ""},
		"larger than any packet":                {65536, false, onlyV4, 0, "above 65535"},
		"loopback's":                            {65536, true, dual, 0, "above 65535"},
		"zero":                                  {0, false, onlyV4, 0, "raise"},
		"negative":                              {-1, true, dual, 0, "IPv6 outside"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := cluster.TunnelMTU(c.underlay, c.outer6, c.inside)
			if c.problem == "" && (err != nil || got != c.want) {
				t.Errorf("got %d, %v, want %d", got, err, c.want)
			}

			if c.problem != "" && (!errors.Is(err, cluster.ErrMTU) ||
				!strings.Contains(err.Error(), c.problem)) {
				t.Errorf("got %d, %v, want an error with %q", got, err, c.problem)
			}
		})
	}
}

// A full inner packet fills the underlay exactly and never exceeds it, from the
// smallest underlay to the largest, in every combination of families.
func TestTunnelMTUForEveryUnderlay(t *testing.T) {
	for _, outer6 := range []bool{false, true} {
		for _, inside := range []cluster.Families{onlyV4, onlyV6, dual} {
			least := cluster.MinUnderlayMTU(outer6, inside)
			for underlay := 0; underlay <= 9216; underlay++ {
				mtu, err := cluster.TunnelMTU(underlay, outer6, inside)
				if (err == nil) != (underlay >= least) {
					t.Fatalf("underlay %d, least %d: %v", underlay, least, err)
				}
				if err != nil {
					continue
				}
				if outer := mtu + cluster.OuterOverhead(outer6); outer != underlay {
					t.Fatalf("a pod's packet of %d bytes is %d outside, the underlay has %d", mtu,
						outer, underlay)
				}
				if inside.V6 && mtu < 1280 || mtu < 576 {
					t.Fatalf("underlay %d gives pods %d", underlay, mtu)
				}
			}
		}
	}
}

// The outer packet of every inner packet fits the underlay. WireGuard pads the inner packet to a
// multiple of 16, but not beyond the MTU of the device (drivers/net/wireguard/send.c).
func TestNoPacketExceedsTheUnderlay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		outer6 := rapid.Bool().Draw(t, "outer6")
		underlay := rapid.IntRange(cluster.MinUnderlayMTU(outer6, onlyV4), cluster.MaxMTU).Draw(t,
			"underlay")
		mtu, err := cluster.TunnelMTU(underlay, outer6, onlyV4)
		if err != nil {
			t.Fatal(err)
		}
		inner := rapid.IntRange(0, mtu).Draw(t, "inner")
		padded := min(mtu, (inner+15)/16*16)
		wire := 16 + padded + 16 + 8 + 20
		if outer6 {
			wire += 20
		}
		if wire > underlay {
			t.Fatalf("inner %d is %d on the wire, the underlay has %d", inner, wire, underlay)
		}
	})
}

func TestExplainMTUAddsUp(t *testing.T) {
	for _, outer6 := range []bool{false, true} {
		lines := cluster.ExplainMTU(1500, outer6)
		sum := 0
		for _, l := range lines[:len(lines)-1] {
			sum += l.Bytes
		}
		want, _ := cluster.TunnelMTU(1500, outer6, dual)
		if last := lines[len(lines)-1]; last.Bytes != sum || sum != want {
			t.Errorf("outer6 %v: lines add up to %d, the last says %d, TunnelMTU %d", outer6, sum,
				last.Bytes, want)
		}
	}
}
