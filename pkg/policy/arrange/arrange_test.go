package arrange

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// drawLines returns lines in the form of a plan: without duplicates, and sorted by peer.
func drawLines(t *rapid.T) (lines []policy.Line) {
	peers := rapid.IntRange(1, 6*minPeers).Draw(t, "peers")
	ports := rapid.IntRange(1, 2*minPorts).Draw(t, "ports")
	every := rapid.IntRange(1, 4).Draw(t, "share of the lines")

	for p := range peers {
		name := fmt.Sprintf("%c%020d", "pbn"[p%3], p)
		if p == 0 && rapid.Bool().Draw(t, "all peers") {
			name = ""
		}
		for i := range ports {
			if rapid.IntRange(1, every).Draw(t, "line") > 1 {
				continue
			}
			first := uint16(80 + i)
			interval := policy.Interval{Proto: policy.TCP, First: first, Last: first}
			switch i % 5 {
			case 3:
				interval.Last += 9
			case 4:
				interval = policy.Interval{}
			}
			lines = append(lines, policy.Line{Peer: name, Ports: interval})
		}
	}

	slices.SortStableFunc(lines, func(a, b policy.Line) int {
		switch {
		case a.Peer < b.Peer:
			return -1
		case a.Peer > b.Peer:
			return 1
		}
		return 0
	})

	seen := map[policy.Line]bool{}
	return slices.DeleteFunc(lines, func(l policy.Line) bool {
		defer func() { seen[l] = true }()
		return seen[l]
	})
}

func TestGroupsAllowWhatTheirLinesAllow(t *testing.T) {
	unions := 0
	check := func(t *rapid.T) {
		lines := drawLines(t)
		var got []policy.Line
		groups := grouped(lines)

		for _, g := range groups {
			peers := g.Peers
			if len(peers) == 0 {
				peers = []string{""}
			}
			if len(peers) > 1 {
				unions++
			}
			for _, peer := range peers {
				for _, ports := range g.Ports {
					got = append(got, policy.Line{Peer: peer, Ports: ports})
				}
				if letterOf(peer) != letterOf(peers[0]) {
					t.Errorf("one union has peers of two kinds: %q and %q", peers[0], peer)
				}
			}
			for _, ports := range g.Ports[1:] {
				if !isSingle(ports) {
					t.Errorf("the range %v is in a set", ports)
				}
			}
		}

		order := func(a, b policy.Line) int {
			return slices.Compare([]string{a.Peer, fmt.Sprint(a.Ports)},
				[]string{b.Peer, fmt.Sprint(b.Ports)})
		}
		want := slices.SortedFunc(slices.Values(lines), order)
		if slices.SortFunc(got, order); !slices.Equal(got, want) {
			t.Fatalf("%d groups allow\n%v\nwant\n%v", len(groups), got, want)
		}
		if plain := byPeer(lines); len(groups) > len(plain) {
			t.Fatalf("%d groups, more than %d without unions", len(groups), len(plain))
		}
	}
	for i := 0; i < 10 && unions == 0; i++ { // one case of five has unions
		rapid.Check(t, check)
	}
	if unions == 0 {
		t.Error("no random lines became a union")
	}
}

// A cross product of peers and ports becomes one rule. If many peers share ports but no peer has
// all of them, not each port becomes a rule.
func TestLinesAreFewGroups(t *testing.T) {
	line := func(peer, port int) policy.Line {
		return policy.Line{Peer: fmt.Sprintf("p%020d", peer),
			Ports: policy.Interval{Proto: policy.TCP, First: uint16(port), Last: uint16(port)}}
	}

	for name, tt := range map[string]struct {
		has  func(peer, port int) bool
		want int
	}{
		"all":                    {func(int, int) bool { return true }, 1},
		"each port has one peer": {func(peer, port int) bool { return peer == port }, 20},
		"one port":               {func(_, port int) bool { return port == 1 }, 1},
		"random halves": {func(peer, port int) bool {
			return (peer*31+port*17)%7 < 4
		}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []policy.Line
			for peer := range 20 {
				for port := range 60 {
					if tt.has(peer, port) {
						lines = append(lines, line(peer, port))
					}
				}
			}
			if got := len(grouped(lines)); got > tt.want {
				t.Errorf("%d groups of %d lines, want %d", got, len(lines), tt.want)
			}
		})
	}
}
