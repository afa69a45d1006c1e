package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
)

// group is what one rule allows: packets of any of the peers to any of the ports.
type group arrange.Grant

// Prefixes of the names of sets that this package makes from a plan's sets. A hash of the content
// follows.
const (
	portsPrefix = "t"
	unionPrefix = "u"
)

// peerSet returns the name of the set of the peers, without the suffix of a family. "" means all
// peers.
func (g group) peerSet() string {
	switch len(g.Peers) {
	case 0:
		return ""
	case 1:
		return g.Peers[0]
	}
	return unionPrefix + letterOf(g.Peers[0]) + hashed(strings.Join(g.Peers, " "))
}

// letterOf returns the first letter of a set's name, which denotes its kind.
func letterOf(peer string) string { return peer[:min(1, len(peer))] }

// portSet returns the name of the set of the ports, or "" if the group needs no set.
func (g group) portSet() string {
	if len(g.Ports) < 2 {
		return ""
	}
	text := make([]byte, 0, 12*len(g.Ports))
	for _, p := range g.Ports {
		text = append(strconv.AppendInt(append(text, byte(p.Proto), ' '), int64(p.First), 10), ' ')
	}
	return portsPrefix + hashed(string(text))
}

// hashed shortens a text to a hash, as package policy does.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// references are the sets that rules look up, by name.
type references struct {
	// ports are sets of ports.
	ports map[string]*set
	// peers are sets of a plan, without the suffix of a family.
	peers map[string]bool
	// unions are the peers of each union, without the suffix of a family.
	unions map[string][]string
	// boxes are the lines of each set of boxes, without the suffix of a family.
	boxes map[string]boxes
}

func newReferences() references {
	return references{map[string]*set{}, map[string]bool{}, map[string][]string{},
		map[string]boxes{}}
}

// referencesOf returns the references of the rules of a plan's chain; a is the arrangement of its
// lines.
func referencesOf(from *policy.Chain, a arrange.Arrangement) references {
	r := newReferences()
	for kind, lines := range a.Boxes {
		if b := (boxes{arrange.BoxKind(kind), lines}); len(lines) > 0 {
			r.boxes[b.name()] = b
		}
	}

	for _, grant := range a.Grants {
		g := group(grant)
		if name := g.portSet(); name != "" && r.ports[name] == nil {
			r.ports[name] = portSet(g.Ports)
		}
		switch len(g.Peers) {
		case 0:
		case 1:
			r.peers[g.Peers[0]] = true
		default:
			r.unions[g.peerSet()] = g.Peers
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

// protoAndPort is the type of the keys of a set of ports.
var protoAndPort = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)

// portSet returns a set of single ports.
func portSet(ports []policy.Interval) *set {
	e := make(elements, len(ports))
	for _, p := range ports {
		e[key([]byte{byte(p.Proto), 0, 0, 0, byte(p.First >> 8), byte(p.First), 0, 0})] = true
	}
	return &set{key: protoAndPort, concat: true, elements: union{e}}
}
