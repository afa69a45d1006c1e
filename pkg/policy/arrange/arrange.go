package arrange

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// The kernel evaluates the rules of a chain one after another, so a packet pays for each rule that
// does not match. The order of a NetworkPolicy's lines has no meaning. So Arrange joins lines into
// few rules. Lines with the same peers share a set of ports. Lines with the same ports share a set
// of peers, a union.

// Grant is what one rule allows: packets of any of the peers to any of the ports.
type Grant struct {
	// Peers are names of a plan's sets of one kind, sorted. An empty list allows all peers.
	Peers []string
	// Ports holds one range, or the single ports of a set.
	Ports []policy.Interval
}

const (
	// minPorts is the smallest number of single ports with the same peers that become a set of
	// ports. Sets cost too, because the kernel searches the list of all sets to find one.
	minPorts = 4
	// minPeers is the smallest number of peers with the same ports that become a union. A pod that
	// appears or disappears changes each union that contains it.
	minPeers = 8
)

// BoxKind is the kind of lines that a set of boxes holds.
type BoxKind uint8

const (
	// BoxBlocks is for address ranges and all addresses, with any ports. Such a set never changes.
	BoxBlocks BoxKind = iota
	// BoxPods is for pods and nodes with single ports.
	BoxPods
	// BoxPodRanges is for pods and nodes with ranges of ports.
	BoxPodRanges
	// BoxKinds is the number of kinds.
	BoxKinds
)

const (
	// maxGroups is the largest number of groups of a chain for which each group becomes a rule. In
	// a chain with more groups, only the large groups become rules.
	maxGroups = 32
	// minLines is the smallest number of lines of a large group.
	minLines = 64
	// maxPodGroups is the largest number of groups of pods for which each group becomes a rule.
	// Rules need fewer elements: they share the sets of peers, but a set of boxes copies the
	// addresses of each of its peers, for each chain.
	maxPodGroups = 1024
)

// letterOf returns the first letter of a set's name, which denotes its kind.
func letterOf(peer string) string { return peer[:min(1, len(peer))] }

func kindOfBox(l policy.Line) BoxKind {
	switch {
	case l.Peer == "" || letterOf(l.Peer) == "b":
		return BoxBlocks
	case isSingle(l.Ports):
		return BoxPods
	}
	return BoxPodRanges
}

// Arrangement holds the lines of NetworkPolicies in the form of a chain's rules.
type Arrangement struct {
	// Each Grant becomes one rule.
	Grants []Grant
	// Boxes holds sorted lines by kind. The lines of one kind become one rule, which looks up
	// address, protocol and port in one set.
	Boxes [BoxKinds][]policy.Line
}

// Arrange returns the lines as few groups. If there are many groups, it returns the lines of small
// groups as boxes. The lines must be sorted by peer. If boxed is set, each line that can be a box
// is returned as a box.
func Arrange(lines []policy.Line, boxed bool) Arrangement {
	groups := grouped(lines)
	if len(groups) <= maxGroups && !boxed {
		return Arrangement{Grants: groups}
	}

	// A line of all protocols cannot be a box: a set with a port matches only packets with a port.
	var whole, rest []policy.Line
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
		slices.SortFunc(b, CompareLines)
	}
	return out
}

// CompareLines orders lines by peer, then by ports.
func CompareLines(a, b policy.Line) int {
	return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Ports.Proto, b.Ports.Proto),
		cmp.Compare(a.Ports.First, b.Ports.First), cmp.Compare(a.Ports.Last, b.Ports.Last))
}

// lines returns how many lines the group has.
func (g Grant) lines() int { return max(1, len(g.Peers)) * len(g.Ports) }

// ofPods reports whether the peers are pods or nodes, whose addresses change.
func (g Grant) ofPods() bool { return len(g.Peers) > 0 && letterOf(g.Peers[0]) != "b" }

// each calls yield with the lines of the group.
func (g Grant) each(yield func(policy.Line) bool) {
	peers := g.Peers
	if len(peers) == 0 {
		peers = []string{""}
	}
	for _, peer := range peers {
		for _, ports := range g.Ports {
			if !yield(policy.Line{Peer: peer, Ports: ports}) {
				return
			}
		}
	}
}

// grouped returns the lines of NetworkPolicies as few groups. The lines must be sorted by peer.
func grouped(lines []policy.Line) []Grant {
	single := byPeer(lines)
	shared, rest := byPorts(lines)
	if len(shared) == 0 {
		return single
	}
	// byPeer makes fewer groups than byPorts if peers share many ports but each peer lacks some.
	if joined := append(shared, byPeer(rest)...); len(joined) < len(single) {
		return joined
	}
	return single
}

// byPeer groups lines by their peer.
func byPeer(lines []policy.Line) (out []Grant) {
	for len(lines) > 0 {
		n := 1
		for n < len(lines) && lines[n].Peer == lines[0].Peer {
			n++
		}
		var peers []string
		if lines[0].Peer != "" {
			peers = []string{lines[0].Peer}
		}
		ports := make([]policy.Interval, 0, n)
		for _, l := range lines[:n] {
			ports = append(ports, l.Ports)
		}
		out = appendGroups(out, peers, ports)
		lines = lines[n:]
	}
	return out
}

// appendGroups appends the groups that allow peers the ports.
func appendGroups(to []Grant, peers []string, ports []policy.Interval) []Grant {
	single := make([]policy.Interval, 0, len(ports))
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

func isSingle(i policy.Interval) bool { return i.Proto != 0 && i.First == i.Last }

// kindAndPorts holds the properties that all lines of one union share.
type kindAndPorts struct {
	kind  string
	ports policy.Interval
}

// byPorts groups lines with the same ports if at least minPeers peers of one kind have these ports.
// rest holds the other lines in their order.
func byPorts(lines []policy.Line) (out []Grant, rest []policy.Line) {
	if !anyShared(lines) {
		return nil, lines
	}

	of := func(l policy.Line) kindAndPorts { return kindAndPorts{letterOf(l.Peer), l.Ports} }
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

	ports := map[string][]policy.Interval{}
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

// anyShared reports whether byPorts may find lines to group. Usually byPorts would find none, and
// it takes longer than this check.
func anyShared(lines []policy.Line) bool {
	count := make(map[policy.Interval]int, len(lines))
	for _, l := range lines {
		if count[l.Ports]++; count[l.Ports] >= minPeers {
			return true
		}
	}
	return false
}
