package chains

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

var prefixes, addrs = nettest.Prefixes, nettest.Addrs

func TestTableHasNoOverlaps(t *testing.T) {
	got := Settings{
		Ranges: prefixes("198.18.0.0/15", "198.18.4.0/24", "255.255.0.0/16", "fd42::/16",
			"fd42:1::/48"),
		NodeAddrs:   addrs("198.19.0.1", "fd42:9::1"),
		VIPs:        addrs("198.19.199.1", "fd42:fd::1"),
		PodPrefixes: prefixes("198.18.7.0/24", "fd42:1:0:7::/64"),
		SelfAddrs:   addrs("fd42:9::2", "198.19.0.2", "198.19.0.1", "fd42:9::1"),
		Datagrams: &Datagrams{Port: 51820,
			Sources: addrs("198.19.0.7", "fd42:9::7", "198.19.0.7"), Bind: true},
		Sites: []Site{{Name: "b", Ranges: prefixes("198.19.8.0/24", "198.19.8.0/25")},
			{Name: "c", Ranges: prefixes("fd42:8::/64", "198.19.9.0/24")}},
		Openings: []cluster.Opening{
			{Site: "b", Protocol: 6, Endpoint: netip.MustParseAddrPort("198.18.7.2:80")},
			{Site: "c", Protocol: 17, Endpoint: netip.MustParseAddrPort("[fd42:1:0:7::2]:53")},
			{Site: "d", Protocol: 6, Endpoint: netip.MustParseAddrPort("198.18.7.2:80")}},
	}.Table()
	byGroup := func(addr string) []nft.Element {
		return []nft.Element{{Key: string(nft.Native(abi.TunnelGroup)), Value: elements(addr)[0].Key}}
	}
	want := map[string][]nft.Element{
		"ranges4": {nft.Interval(netip.MustParsePrefix("198.18.0.0/15")),
			nft.Interval(netip.MustParsePrefix("255.255.0.0/16"))},
		"ranges6": {nft.Interval(netip.MustParsePrefix("fd42::/16"))},
		"nodes4":  elements("198.19.0.1"),
		"nodes6":  elements("fd42:9::1"),
		"vips4":   elements("198.19.199.1"),
		"vips6":   elements("fd42:fd::1"),
		"self4":   byGroup("198.18.7.1"),
		"self6":   byGroup("fd42:1:0:7::1"),
		"own4":    elements("198.19.0.2", "198.19.0.1"),
		"own6":    elements("fd42:9::2", "fd42:9::1"),
		"source4": byGroup("198.19.0.2"),
		"source6": byGroup("fd42:9::2"),

		"endpoints4":  elements("198.19.0.7"),
		"endpoints6":  elements("fd42:9::7"),
		"outer4":      byGroup("198.19.0.2"),
		"outer6":      byGroup("fd42:9::2"),
		setTunnelPort: {{Key: "\xca\x6c"}},

		"site1_ranges4": {nft.Interval(netip.MustParsePrefix("198.19.8.0/24"))},
		"site2_ranges4": {nft.Interval(netip.MustParsePrefix("198.19.9.0/24"))},
		"site2_ranges6": {nft.Interval(netip.MustParsePrefix("fd42:8::/64"))},
		"site1_exports4": {nft.Key([]byte{198, 18, 7, 2}, []byte{6, 0, 0, 0},
			[]byte{0, 80, 0, 0})},
		"site2_exports6": {nft.Key(addrs("fd42:1:0:7::2")[0].AsSlice(), []byte{17, 0, 0, 0},
			[]byte{0, 53, 0, 0})},
	}
	for _, set := range got.Sets {
		if diff := cmp.Diff(want[set.Name], set.Elements); diff != "" {
			t.Errorf("elements of set %s (-want +got): %s", set.Name, diff)
		}
	}
}

func elements(all ...string) (out []nft.Element) {
	for _, a := range addrs(all...) {
		out = append(out, nft.Addr(a))
	}
	return out
}

func TestBadSettingsAreAllNamed(t *testing.T) {
	s := Settings{
		Ranges: []netip.Prefix{netip.MustParsePrefix("198.18.1.0/16"), {},
			netip.MustParsePrefix("::ffff:198.18.0.0/112")},
		NodeAddrs: []netip.Addr{{}, netip.MustParseAddr("::ffff:198.18.0.1"),
			netip.MustParseAddr("fe80::1%eth0")},
		VIPs:      []netip.Addr{{}},
		SelfAddrs: []netip.Addr{{}},
		Datagrams: &Datagrams{Sources: []netip.Addr{{}}},
		Sites:     []Site{{Name: "b", Ranges: []netip.Prefix{{}}}},
		Openings:  []cluster.Opening{{Site: "b"}},
	}
	err := s.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 11 {
		t.Errorf("got %v, want twelve problems", err)
	}
	if err := (Settings{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestTablesCountReasons(t *testing.T) {
	for _, table := range []*nft.Table{Settings{}.Table(), Pods()} {
		for _, name := range table.Counters {
			if name != MarksRestored && !slices.ContainsFunc(bpf.Reasons,
				func(r bpf.Reason) bool { return r.Name == name }) {
				t.Errorf("bpf/reasons.go has no %s", name)
			}
		}
	}
}

func TestRulesCountWhatTheCountersHave(t *testing.T) {
	for _, table := range []*nft.Table{Settings{}.Table(), Pods()} {
		for _, c := range table.Chains {
			for _, e := range slices.Concat(c.Rules...) {
				if o, ok := e.(*expr.Objref); ok && !slices.Contains(table.Counters, o.Name) {
					t.Errorf("chain %s counts on %s", c.Name, o.Name)
				}
			}
		}
	}
	if n := len(chains()); n != 17 {
		t.Errorf("%d chains", n)
	}
}

func TestSelfAddrs(t *testing.T) {
	for _, c := range []struct {
		situation      string
		prefixes, want []string
	}{
		{"nothing is known", nil, nil},
		{"dual-stack", []string{"198.18.7.0/24", "fd42:1:0:7::/64"},
			[]string{"198.18.7.1", "fd42:1:0:7::1"}},
		{"several of a family", []string{"198.18.7.0/24", "fd42:1:0:7::/64", "198.18.6.0/24"},
			[]string{"198.18.7.1", "fd42:1:0:7::1"}},
		{"host bits", []string{"198.18.7.9/24"}, []string{"198.18.7.1"}},
		{"of one address", []string{"198.18.7.1/32", "fd42:1:0:7::1/128"}, nil},
		{"of one address, then another", []string{"198.18.7.1/32", "198.18.6.0/24"},
			[]string{"198.18.6.1"}},
		{"the end of the address space", []string{"255.255.255.255/32"}, nil},
		{"IPv4 in IPv6", []string{"::ffff:198.18.7.0/120"}, nil},
	} {
		t.Run(c.situation, func(t *testing.T) {
			if got, want := selfAddrs(prefixes(c.prefixes...)), addrs(c.want...); !slices.Equal(got,
				want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}

	if got := selfAddrs([]netip.Prefix{{}}); got != nil {
		t.Errorf("addresses without a prefix: got %v", got)
	}
}
