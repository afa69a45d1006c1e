package sets

import (
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Elements are keys of a set. The key of the end of an interval has a leading byte 1. The key of a
// box has a leading byte 2, then the keys of its first and its last corner. All other keys have a
// leading byte 0.
type Elements map[string]bool

// Union holds the keys of a set in parts: a key is in the set if it is in any part. A part of a set
// that a Maker returned is never changed, so a part that two unions share need not be compared.
type Union []Elements

// Has reports whether any part has a key.
func (u Union) Has(key string) bool {
	for _, part := range u {
		if part[key] {
			return true
		}
	}
	return false
}

// Set is a set with the properties with which the kernel has to make it.
type Set struct {
	Key      nftables.SetDatatype
	Concat   bool
	Interval bool
	Elements Union
	// Timeout is the timeout of each element; 0 means no timeout. Elements of a set with a timeout
	// are not part of the plan.
	Timeout time.Duration
	// Room bounds the elements that rules add; 0 if no rule adds any.
	Room uint32
}

// Family holds the names and types of the sets of one address family.
type Family struct {
	Name      string // as nft names the header
	Suffix    string // of sets of peers
	Size      uint32 // of an address
	Members   string // the prefix of sets of members
	Self, Own string
	// Ended has the answers to ended flows. Same, Inside and Nodes are for packets that are related
	// to known connections. Logged has the sources of logged drops.
	Ended, Same, Inside, Nodes, Logged string
	Addr                               nftables.SetDatatype
}

// Families are IPv4 and IPv6. IndexOf returns an index of it.
var Families = []Family{
	{"ip", "_4", 4, abi.NFTMembers4, abi.NFTSelf4, "own4", "ended4", "same4", "inside4", "nodes4",
		"logged4", nftables.TypeIPAddr},
	{"ip6", "_6", 16, abi.NFTMembers6, abi.NFTSelf6, "own6", "ended6", "same6", "inside6", "nodes6",
		"logged6", nftables.TypeIP6Addr},
}

// IndexOf returns the index in Families of an address's family.
func IndexOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Key returns the key of an element that is neither the end of an interval nor a box.
func Key(b []byte) string { return "\x00" + string(b) }

// KeyRange is the leading byte of the key of a box.
const KeyRange = "\x02"

// IsNamed reports whether a set of peers, or a union, is of policy.KindNamed.
func IsNamed(name string) bool {
	return strings.HasPrefix(strings.TrimPrefix(name, unionPrefix), "n")
}

// IsMembers reports whether the set holds members of a group, which the CNI plugin writes too.
func IsMembers(name string) bool {
	return strings.HasPrefix(name, abi.NFTMembers4) || strings.HasPrefix(name, abi.NFTMembers6) ||
		name == abi.NFTSelf4 || name == abi.NFTSelf6
}

// IsInside reports whether a set judges only ICMP errors.
func IsInside(name string) bool {
	for _, f := range Families {
		if name == f.Inside || name == f.Nodes {
			return true
		}
	}
	return false
}

// OfFamily reports whether ranges, which are of one family, are of the family with an index.
func OfFamily(ranges []policy.Range, i int) bool {
	return len(ranges) > 0 && ranges[0].First.Is4() == (i == 0)
}

// rangesOf returns the ranges of one family.
func rangesOf(ranges []policy.Range, i int) (out []policy.Range) {
	for _, r := range ranges {
		if IndexOf(r.First) == i {
			out = append(out, r)
		}
	}
	return out
}

// peerSets returns the kernel's sets for a plan's set, by family, or nil for a family without one.
func peerSets(s *policy.Set) []*Set {
	out := make([]*Set, len(Families))
	for i, f := range Families {
		switch s.Kind {
		case policy.KindPods, policy.KindNodes:
			out[i] = &Set{Key: f.Addr, Elements: Union{{}}}
		case policy.KindNamed:
			key, _ := nftables.ConcatSetType(f.Addr, nftables.TypeInetProto,
				nftables.TypeInetService)
			out[i] = &Set{Key: key, Concat: true, Elements: Union{{}}}
		case policy.KindBlock:
			// Chains refer to SetRanges of both families, even if it is empty.
			if own := rangesOf(s.Ranges, i); len(own) > 0 || s.Name == policy.SetRanges {
				out[i] = &Set{Key: f.Addr, Interval: true,
					Elements: Union{intervals(own)}}
			}
		}
	}

	for _, a := range s.Addrs {
		out[IndexOf(a)].Elements[0][Key(a.AsSlice())] = true
	}
	for _, n := range s.Named {
		out[IndexOf(n.Addr)].Elements[0][Key(append(n.Addr.AsSlice(),
			byte(n.Proto), 0, 0, 0, byte(n.Port>>8), byte(n.Port), 0, 0))] = true
	}
	return out
}

// intervals returns the keys of starts and exclusive ends. A range to the end of the address space
// has no end.
func intervals(ranges []policy.Range) Elements {
	e := Elements{}
	for i, r := range ranges {
		e[Key(r.First.AsSlice())] = true
		end := r.Last.Next()
		if end.IsValid() && (i+1 == len(ranges) || ranges[i+1].First != end) {
			e["\x01"+string(end.AsSlice())] = true
		}
	}
	return e
}
