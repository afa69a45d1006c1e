package policy

import (
	"cmp"
	"slices"
	"strings"
)

// The kernel asks the rules of a chain in a row, so a packet pays for each that does not match. The
// order of a NetworkPolicy's lines has no meaning, so lines are joined to few rules: those of the
// same peers by a set of ports, and those of the same ports by a set of peers, a union.

// Grant is what one rule allows: packets of any of the peers to any of the ports.
type Grant struct {
	// Peers are names of a plan's sets of one kind, sorted; none is all peers.
	Peers []string
	// Ports are one range, or the single ports of a set.
	Ports []Interval
}

const (
	// minPorts is from how many single ports of the same peers on a set of them is made. Sets cost
	// too: the kernel finds one by a search of all.
	minPorts = 4
	// minPeers is from how many peers of the same ports on a union is made. A pod that comes or
	// goes changes each union that has it.
	minPeers = 8
)

// BoxKind says which lines a set of boxes has.
type BoxKind uint8

const (
	// BoxBlocks has address ranges and all addresses, with any ports. It never changes.
	BoxBlocks BoxKind = iota
	// BoxPods has pods and nodes with single ports.
	BoxPods
	// BoxPodRanges has pods and nodes with ranges of ports.
	BoxPodRanges
	// BoxKinds is how many kinds there are.
	BoxKinds
)

const (
	// maxGroups is up to how many groups of a chain are a rule each. Of more, only the
	// large ones are.
	maxGroups = 32
	// minLines is how many lines make a group large.
	minLines = 64
	// maxPodGroups is up to how many groups of pods are a rule each. A set of boxes has the
	// addresses of each of its peers anew, for each chain: rules share the sets of peers.
	maxPodGroups = 1024
)

// letterOf is the first letter of a set's name, which says its kind.
func letterOf(peer string) string { return peer[:min(1, len(peer))] }

func kindOfBox(l Line) BoxKind {
	switch {
	case l.Peer == "" || letterOf(l.Peer) == "b":
		return BoxBlocks
	case isSingle(l.Ports):
		return BoxPods
	}
	return BoxPodRanges
}

// Arrangement is the lines of NetworkPolicies as the rules of a chain.
type Arrangement struct {
	// Grants are one rule each.
	Grants []Grant
	// Boxes are lines that are one rule, with a set of address, protocol and port; sorted.
	Boxes [BoxKinds][]Line
}

// Arrange returns the lines as few groups, and as boxes where groups are many. The lines are sorted
// by peer. boxed makes boxes of all lines that can be one.
func Arrange(lines []Line, boxed bool) Arrangement {
	groups := grouped(lines)
	if len(groups) <= maxGroups && !boxed {
		return Arrangement{Grants: groups}
	}

	// All protocols are no box: a set with a port matches only packets that have one.
	var whole, rest []Line
	for _, l := range lines {
		if l.Ports.Proto == 0 {
			whole = append(whole, l)
		} else {
			rest = append(rest, l)
		}
	}
	var out Arrangement
	joined, single := byPorts(whole)
	out.Grants = append(joined, byPeer(single)...)

	groups = grouped(rest)
	slices.SortStableFunc(groups, func(a, b Grant) int { return cmp.Compare(b.lines(), a.lines()) })
	ofPods := 0
	for _, g := range groups {
		if g.ofPods() {
			ofPods++
		}
	}
	for i, g := range groups {
		few := i < maxGroups && g.lines() >= minLines ||
			g.ofPods() && (ofPods <= maxPodGroups || g.lines() > 1)
		if few && !boxed {
			out.Grants = append(out.Grants, g)
			continue
		}
		for l := range g.each {
			k := kindOfBox(l)
			out.Boxes[k] = append(out.Boxes[k], l)
		}
	}
	for _, b := range out.Boxes {
		slices.SortFunc(b, compareLines)
	}
	return out
}

func compareLines(a, b Line) int {
	return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Ports.Proto, b.Ports.Proto),
		cmp.Compare(a.Ports.First, b.Ports.First), cmp.Compare(a.Ports.Last, b.Ports.Last))
}

// lines returns how many lines the group has.
func (g Grant) lines() int { return max(1, len(g.Peers)) * len(g.Ports) }

// ofPods reports whether the peers are pods or nodes, whose addresses change.
func (g Grant) ofPods() bool { return len(g.Peers) > 0 && letterOf(g.Peers[0]) != "b" }

// each calls yield with the lines of the group.
func (g Grant) each(yield func(Line) bool) {
	peers := g.Peers
	if len(peers) == 0 {
		peers = []string{""}
	}
	for _, peer := range peers {
		for _, ports := range g.Ports {
			if !yield(Line{Peer: peer, Ports: ports}) {
				return
			}
		}
	}
}

// grouped returns the lines of NetworkPolicies as few groups. The lines are sorted by peer.
func grouped(lines []Line) []Grant {
	single := byPeer(lines)
	shared, rest := byPorts(lines)
	if len(shared) == 0 {
		return single
	}
	// Where peers have many ports in common, but none has all, sets of ports are fewer.
	if joined := append(shared, byPeer(rest)...); len(joined) < len(single) {
		return joined
	}
	return single
}

// byPeer groups lines by their peer.
func byPeer(lines []Line) (out []Grant) {
	for len(lines) > 0 {
		n := 1
		for n < len(lines) && lines[n].Peer == lines[0].Peer {
			n++
		}
		var peers []string
		if lines[0].Peer != "" {
			peers = []string{lines[0].Peer}
		}
		ports := make([]Interval, 0, n)
		for _, l := range lines[:n] {
			ports = append(ports, l.Ports)
		}
		out = appendGroups(out, peers, ports)
		lines = lines[n:]
	}
	return out
}

// appendGroups appends what allows peers the ports.
func appendGroups(to []Grant, peers []string, ports []Interval) []Grant {
	single := make([]Interval, 0, len(ports))
	for _, p := range ports {
		if isSingle(p) {
			single = append(single, p)
		}
	}
	merge := len(single) >= minPorts
	if merge {
		to = append(to, Grant{peers, single})
	}
	for i, p := range ports {
		if !merge || !isSingle(p) {
			to = append(to, Grant{peers, ports[i : i+1]})
		}
	}
	return to
}

func isSingle(i Interval) bool { return i.Proto != 0 && i.First == i.Last }

// kindAndPorts is what lines that one union replaces have in common.
type kindAndPorts struct {
	kind  string
	ports Interval
}

// byPorts groups the lines whose ports many peers of one kind have, and returns the rest, which
// stays sorted.
func byPorts(lines []Line) (out []Grant, rest []Line) {
	if !anyShared(lines) {
		return nil, lines
	}

	of := func(l Line) kindAndPorts { return kindAndPorts{letterOf(l.Peer), l.Ports} }
	count := make(map[kindAndPorts]int, len(lines))
	for _, l := range lines {
		count[of(l)]++
	}
	peers := map[kindAndPorts][]string{}
	var order []kindAndPorts
	for _, l := range lines {
		k := of(l)
		if l.Peer == "" || count[k] < minPeers {
			rest = append(rest, l)
			continue
		}
		if peers[k] == nil {
			order = append(order, k)
		}
		peers[k] = append(peers[k], l.Peer)
	}

	ports := map[string][]Interval{}
	var lists [][]string
	for _, k := range order {
		list := strings.Join(peers[k], " ")
		if ports[list] == nil {
			lists = append(lists, peers[k])
		}
		ports[list] = append(ports[list], k.ports)
	}
	for _, list := range lists {
		out = appendGroups(out, list, ports[strings.Join(list, " ")])
	}
	return out, rest
}

// anyShared reports whether there may be something for byPorts: usually not, and it takes longer.
func anyShared(lines []Line) bool {
	count := make(map[Interval]int, len(lines))
	for _, l := range lines {
		if count[l.Ports]++; count[l.Ports] >= minPeers {
			return true
		}
	}
	return false
}
