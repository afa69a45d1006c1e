package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// numbered is a node of that number in some of its versions.
func numbered(n, version int) cluster.Node {
	a := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	p := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n), 0}), 24)}
	node := cluster.Node{
		Name: fmt.Sprintf("node-%04d", n), Created: time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC),
		Addresses: []netip.Addr{a}, PodPrefixes: p,
	}
	if version > 0 {
		node.Claim = &cluster.Claim{
			Keys:        []cluster.Key{{Epoch: 1, Public: wgkey.Public{byte(n), byte(version)}}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(a, uint16(version))},
			PodPrefixes: p,
		}
	}
	return node
}

// The text depends only on the table, regardless of what was encoded before.
func TestEncoderWritesWhatEncodeWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e encoder
		for i := range rapid.IntRange(1, 5).Draw(t, "tables") {
			table := cluster.Table{Revision: uint64(i), Peers: []cluster.Node{}}
			for _, n := range rapid.SliceOfDistinct(rapid.IntRange(0, 9), rapid.ID[int]).Draw(t,
				"nodes") {
				table.Peers = append(table.Peers,
					numbered(n, rapid.IntRange(0, 2).Draw(t, "version")))
			}

			slices.SortFunc(table.Peers, func(a, b cluster.Node) int {
				return strings.Compare(a.Name, b.Name)
			})
			table.NodeAddrs = rapid.SampledFrom([][]netip.Addr{nil, {},
				{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("fd42::1%\"")}}).Draw(t,
				"node addresses")
			if rapid.Bool().Draw(t, "self") {
				self := numbered(10, 1)
				self.Name = `"peers":[]`
				table.Self, table.Keyless = &self, []cluster.Node{numbered(11, 0)}
			}

			want, err := Encode(table)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.encode(table)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Fatalf("table %d:\n%s\nwant\n%s", i, got, want)
			}
		}
	})
}

func TestEncoderCopiesWhatDidNotChange(t *testing.T) {
	table := func(changed int) cluster.Table {
		t := cluster.Table{}
		for n := range 1000 {
			version := 1
			if n == 500 {
				version += changed
			}
			t.Peers = append(t.Peers, numbered(n, version))
		}
		return t
	}
	tables := []cluster.Table{table(0), table(1), table(2)}
	var e encoder
	i := 0
	allocated := testing.AllocsPerRun(30, func() {
		if _, err := e.encode(tables[i%3]); err != nil {
			t.Fatal(err)
		}
		i++
	})
	if allocated > 200 {
		t.Errorf("one changed node of a thousand allocates %.0f times", allocated)
	}
}

func BenchmarkOneOfAThousandNodesChanged(b *testing.B) {
	var tables [2]cluster.Table
	for i := range tables {
		for n := range 1000 {
			version := 1
			if n == 500 {
				version += i
			}
			tables[i].Peers = append(tables[i].Peers, numbered(n, version))
		}
	}
	for name, encode := range map[string]func(cluster.Table) ([]byte, error){
		"encoder": new(encoder).encode, "Encode": Encode} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := encode(tables[i%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
