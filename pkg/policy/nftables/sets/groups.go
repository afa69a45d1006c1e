package sets

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"strconv"
	"strings"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
)

// Group is what one rule allows: packets of any of the peers to any of the ports.
type Group arrange.Grant

// Prefixes of the names of sets that this package makes from a plan's sets. A hash of the content
// follows.
const (
	PortsPrefix = "t"
	unionPrefix = "u"
)

// PeerSet returns the name of the set of the peers, without the suffix of a family. "" means all
// peers.
func (g Group) PeerSet() string {
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

// PortSet returns the name of the set of the ports, or "" if the group needs no set.
func (g Group) PortSet() string {
	if len(g.Ports) < 2 {
		return ""
	}
	text := make([]byte, 0, 12*len(g.Ports))
	for _, p := range g.Ports {
		text = append(strconv.AppendInt(append(text, byte(p.Proto), ' '), int64(p.First), 10), ' ')
	}
	return PortsPrefix + hashed(string(text))
}

// hashed shortens a text to a hash, as package policy does.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// References are the sets that rules look up, by name.
type References struct {
	// ports are sets of ports.
	ports map[string]*Set
	// peers are sets of a plan, without the suffix of a family.
	peers map[string]bool
	// unions are the peers of each union, without the suffix of a family.
	unions map[string][]string
	// boxes are the lines of each set of boxes, without the suffix of a family.
	boxes map[string]Boxes
}

func newReferences() References {
	return References{map[string]*Set{}, map[string]bool{}, map[string][]string{},
		map[string]Boxes{}}
}

// ReferencesOf returns the references of the rules of a plan's chain. grants and boxes are the
// arrangement of its lines.
func ReferencesOf(from *policy.Chain, grants []arrange.Grant, boxes []Boxes) References {
	r := newReferences()
	for _, b := range boxes {
		r.boxes[b.Name] = b
	}

	for _, grant := range grants {
		g := Group(grant)
		if name := g.PortSet(); name != "" && r.ports[name] == nil {
			r.ports[name] = portSet(g.Ports)
		}
		switch len(g.Peers) {
		case 0:
		case 1:
			r.peers[g.Peers[0]] = true
		default:
			r.unions[g.PeerSet()] = g.Peers
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

// Names returns the names of the sets in the kernel, with those that a family may lack.
func (r References) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range r.ports {
			if !yield(name) {
				return
			}
		}
		for _, f := range Families {
			for _, names := range []iter.Seq[string]{maps.Keys(r.peers), maps.Keys(r.unions),
				maps.Keys(r.boxes)} {
				for name := range names {
					if !yield(name + f.Suffix) {
						return
					}
				}
			}
		}
	}
}

// protoAndPort is the type of the keys of a set of ports.
var protoAndPort = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)

// portSet returns a set of single ports.
func portSet(ports []policy.Interval) *Set {
	e := make(Elements, len(ports))
	for _, p := range ports {
		e[Key([]byte{byte(p.Proto), 0, 0, 0, byte(p.First >> 8), byte(p.First), 0, 0})] = true
	}
	return &Set{Key: protoAndPort, Concat: true, Elements: Union{e}}
}
