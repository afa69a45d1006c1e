package table

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// The kernel asks the rules of a chain in a row, so a packet pays for each that does not match. The
// order of a NetworkPolicy's lines has no meaning, so lines are joined to few rules: those of the
// same peers by a set of ports, and those of the same ports by a set of peers, a union.

// group is what one rule allows: packets of any of the peers to any of the ports.
type group struct {
	// peers are names of a plan's sets of one kind, sorted; none is all peers.
	peers []string
	// ports are one range, or the single ports of a set.
	ports []policy.Interval
}

const (
	// minPorts is from how many single ports of the same peers on a set of them is made. Sets cost
	// too: the kernel finds one by a search of all.
	minPorts = 4
	// minPeers is from how many peers of the same ports on a union is made. A pod that comes or
	// goes changes each union that has it.
	minPeers = 8
)

// Names of sets that this package makes of a plan's begin so; a hash of their content follows.
const (
	portsPrefix = "t"
	unionPrefix = "u"
)

// peerSet is the name of the set of the peers, without the suffix of a family; empty is all peers.
func (g group) peerSet() string {
	switch len(g.peers) {
	case 0:
		return ""
	case 1:
		return g.peers[0]
	}
	return unionPrefix + letterOf(g.peers[0]) + hashed(strings.Join(g.peers, " "))
}

// letterOf is the first letter of a set's name, which says its kind.
func letterOf(peer string) string { return peer[:min(1, len(peer))] }

// portSet is the name of the set of the ports; empty is none.
func (g group) portSet() string {
	if len(g.ports) < 2 {
		return ""
	}
	text := make([]byte, 0, 12*len(g.ports))
	for _, p := range g.ports {
		text = append(strconv.AppendInt(append(text, byte(p.Proto), ' '), int64(p.First), 10), ' ')
	}
	return portsPrefix + hashed(string(text))
}

// hashed shortens a text as package policy does.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// grouped returns the lines of NetworkPolicies as few groups. The lines are sorted by peer.
func grouped(lines []policy.Line) []group {
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
func byPeer(lines []policy.Line) (out []group) {
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

// appendGroups appends what allows peers the ports.
func appendGroups(to []group, peers []string, ports []policy.Interval) []group {
	single := make([]policy.Interval, 0, len(ports))
	for _, p := range ports {
		if isSingle(p) {
			single = append(single, p)
		}
	}
	merge := len(single) >= minPorts
	if merge {
		to = append(to, group{peers, single})
	}
	for i, p := range ports {
		if !merge || !isSingle(p) {
			to = append(to, group{peers, ports[i : i+1]})
		}
	}
	return to
}

func isSingle(i policy.Interval) bool { return i.Proto != 0 && i.First == i.Last }

// kindAndPorts is what lines that one union replaces have in common.
type kindAndPorts struct {
	kind  string
	ports policy.Interval
}

// byPorts groups the lines whose ports many peers of one kind have, and returns the rest, which
// stays sorted.
func byPorts(lines []policy.Line) (out []group, rest []policy.Line) {
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

// anyShared reports whether there may be something for byPorts: usually not, and it takes longer.
func anyShared(lines []policy.Line) bool {
	count := make(map[policy.Interval]int, len(lines))
	for _, l := range lines {
		if count[l.Ports]++; count[l.Ports] >= minPeers {
			return true
		}
	}
	return false
}

// references are the sets that rules look up, by name.
type references struct {
	// ports are sets of ports.
	ports map[string]*set
	// peers are sets of a plan, without the suffix of a family.
	peers map[string]bool
	// unions are the peers of each union, without the suffix of a family.
	unions map[string][]string
}

func newReferences() references {
	return references{map[string]*set{}, map[string]bool{}, map[string][]string{}}
}

// referencesOf are those of the rules of a plan's chain.
func referencesOf(from *policy.Chain) references {
	r := newReferences()
	for _, g := range grouped(from.Lines) {
		if name := g.portSet(); name != "" && r.ports[name] == nil {
			r.ports[name] = portSet(g.ports)
		}
		switch len(g.peers) {
		case 0:
		case 1:
			r.peers[g.peers[0]] = true
		default:
			r.unions[g.peerSet()] = g.peers
		}
	}
	for _, tier := range [][]policy.Line{from.Admin, from.Baseline} {
		for _, l := range tier {
			r.peers[l.Peer] = true
			if l.Doubts() {
				r.peers[policy.SetRanges], r.peers[policy.SetKnown] = true, true
			}
		}
	}
	return r
}

// addAll adds others. Sets of ports that are known already are kept.
func (r *references) addAll(others references, known map[string]*set) {
	for name, s := range others.ports {
		r.ports[name] = cmp.Or(r.ports[name], known[name], s)
	}
	maps.Copy(r.peers, others.peers)
	maps.Copy(r.unions, others.unions)
}

// protoAndPort is the type of the keys of a set of ports.
var protoAndPort = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)

// portSet is a set of single ports.
func portSet(ports []policy.Interval) *set {
	e := make(elements, len(ports))
	for _, p := range ports {
		e[key([]byte{byte(p.Proto), 0, 0, 0, byte(p.First >> 8), byte(p.First), 0, 0})] = true
	}
	return &set{key: protoAndPort, concat: true, elements: union{e}}
}
