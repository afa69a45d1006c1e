package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAddedRangesOnlyClose(t *testing.T) {
	p := netip.MustParsePrefix
	rules := Rules{Self: "a",
		ClusterRanges: []netip.Prefix{p("10.244.0.0/16"), p("fd00:1::/48")},
		ServiceRanges: []netip.Prefix{p("10.96.0.0/16"), p("fd00:2::/112")},
		NodeRanges:    []netip.Prefix{p("192.0.2.0/24")},
		Outside:       []netip.Prefix{p("192.0.2.128/25")},
		Sites: []Site{{Name: "s", PodRanges: []netip.Prefix{p("10.245.0.0/16")},
			NodeRanges: []netip.Prefix{p("203.0.113.0/24")}}}}
	last := &Table{NodeAddrs: []netip.Addr{netip.MustParseAddr("198.51.100.9")},
		APIServers: []netip.Addr{netip.MustParseAddr("fd00:9::1")}}
	state := State{RangesListed: true, APIServers: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
		Nodes: []Node{{Name: "b", Addresses: []netip.Addr{netip.MustParseAddr("fd00:8::b")}}}}

	for situation, tc := range map[string]struct{ prefix, problem string }{
		"another range":                {"10.97.0.0/16", ""},
		"another range, IPv6":          {"fd00:3::/112", ""},
		"one that holds a known one":   {"10.96.0.0/12", ""},
		"a cluster range":              {"10.244.128.0/20", "overlaps 10.244.0.0/16 of clusterRanges"},
		"a cluster range, IPv6":        {"fd00::/16", "overlaps fd00:1::/48 of clusterRanges"},
		"a node range":                 {"192.0.0.0/16", "overlaps 192.0.2.0/24 of nodeRanges"},
		"the address of a known node":  {"198.51.100.8/29", "198.51.100.9 of a node"},
		"the address of a listed node": {"fd00:8::/64", "fd00:8::b of node b"},
		"an API server":                {"198.51.100.0/30", "198.51.100.1 of an API server"},
		"a known API server":           {"fd00:9::/64", "fd00:9::1 of an API server"},
		"pods of a site":               {"10.245.1.0/24", "overlaps 10.245.0.0/16 of site s"},
		"nodes of a site":              {"203.0.113.0/25", "overlaps 203.0.113.0/24 of site s"},
		"everything":                   {"0.0.0.0/0", "overlaps"},
		"metadata of a cloud":          {"169.254.169.0/24", "of no service"},
		"everything, IPv6":             {"::/0", "overlaps"},
	} {
		t.Run(situation, func(t *testing.T) {
			s := state
			s.ServiceRanges = []ServiceRange{{"more", p(tc.prefix)}}
			added, problems := AddedRanges(rules, s, last)
			text := strings.Join(problems, "\n")
			if tc.problem == "" && (text != "" || !slices.Equal(added, []netip.Prefix{p(tc.prefix)})) {
				t.Errorf("closed %v, problems %q", added, text)
			}
			if tc.problem != "" && (len(added) != 0 || !strings.Contains(text, tc.problem) ||
				!strings.Contains(text, "ServiceCIDR more is not closed")) {
				t.Errorf("closed %v, problems %q, want %q", added, text, tc.problem)
			}

			// A closed range stays closed, regardless of later evidence: evidence opens nothing.
			before := *last
			before.ServiceRanges = []netip.Prefix{p(tc.prefix)}
			added, problems = AddedRanges(rules, s, &before)
			if !slices.Equal(added, before.ServiceRanges) || len(problems) > 0 != (tc.problem != "") {
				t.Errorf("of one that was closed: %v, %q", added, problems)
			}
		})
	}

	s := state
	s.ServiceRanges = []ServiceRange{{"kubernetes", p("10.96.0.0/16")}, {"part", p("fd00:2::8/125")}}
	if added, problems := AddedRanges(rules, s, last); len(added)+len(problems) != 0 {
		t.Errorf("what is in serviceRanges: closed %v, problems %q", added, problems)
	}
}

// Until the ranges are listed, and where the API server has none, the ranges of the last table
// stay. A range that is no longer listed is removed.
func TestAddedRangesStayUntilTheyAreListed(t *testing.T) {
	last := &Table{ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}}
	if added, _ := AddedRanges(Rules{}, State{Synced: true}, last); len(added) != 1 {
		t.Errorf("before a list: %v", added)
	}
	if added, _ := AddedRanges(Rules{}, State{RangesListed: true}, last); len(added) != 0 {
		t.Errorf("deleted: %v", added)
	}
	if added, _ := AddedRanges(Rules{}, State{}, nil); len(added) != 0 {
		t.Errorf("no table, no list: %v", added)
	}
}

func TestAddedRangesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := State{RangesListed: true}
		for i := range rapid.IntRange(0, 3*MaxAddedRanges).Draw(t, "ranges") {
			state.ServiceRanges = append(state.ServiceRanges, ServiceRange{fmt.Sprintf("r%03d", i),
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)})
		}
		added, problems := AddedRanges(Rules{}, state, nil)
		want := min(len(state.ServiceRanges), MaxAddedRanges)
		if len(added) != want || len(problems) > 0 != (len(state.ServiceRanges) > MaxAddedRanges) {
			t.Fatalf("%d of %d are closed, problems %q", len(added), len(state.ServiceRanges), problems)
		}

		// New ranges do not open a closed range, regardless of the order in which they are listed.
		last := &Table{ServiceRanges: added}
		state.ServiceRanges = append([]ServiceRange{{"a", netip.MustParsePrefix("11.0.0.0/16")}},
			rapid.Permutation(state.ServiceRanges).Draw(t, "order")...)
		again, _ := AddedRanges(Rules{}, state, last)
		for _, r := range added {
			if !slices.Contains(again, r) {
				t.Fatalf("%s was closed and is not", r)
			}
		}
	})
}
