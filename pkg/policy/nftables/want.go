package nftables

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Names of counters, and of the chains in which packets are dropped.
var (
	pending   = policy.DenyPending.String()
	midstream = policy.DenyMidstream.String()
	denied    = map[policy.Direction]string{policy.Ingress: policy.DenyIngress.String(),
		policy.Egress: policy.DenyEgress.String()}
	admin    = policy.DenyAdmin.String()
	baseline = policy.DenyBaseline.String()
	unknown  = policy.DenyUnknownPeer.String()
	foreign  = policy.DenyRelated.String()
)

// Priorities. Postrouting comes before all source NAT (100) and after destination NAT. Input comes
// after IPVS (98 and 99).
const (
	priorityPost  = 95
	priorityInput = 101
)

// chain is a chain of the table. A chain without a hook is reached from other chains only.
type chain struct {
	// make makes the rules. They are made on demand, because there are many and only writing and
	// comparing needs them.
	make     func(*fragments) []rule
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	// refer holds the sets that the rules look up. The references of both families are in the chain
	// of the first family.
	refer references
	// texts is the digest of the rules' texts; nil until the rules were made.
	texts *digest
}

// rules makes the rules of the chain.
func (c *chain) rules(cached *fragments) []rule {
	rules := c.make(cached)
	if c.texts == nil {
		c.texts = &digest{}
		for _, r := range rules {
			c.texts.add([]byte(r.text))
		}
	}
	return rules
}

// summary describes the chain as a read of the kernel does.
func (c *chain) summary(cached *fragments) summary {
	if c.texts == nil {
		c.rules(cached)
	}
	return summary{hook: c.hookText(), texts: *c.texts}
}

// hookText describes the hook of the chain. It returns "" for a chain without a hook.
func (c *chain) hookText() string {
	if c.hook == nil {
		return ""
	}
	return hookNamed(uint32(*c.hook), int32(c.priority))
}

// elements are keys of a set. The key of the end of an interval has a leading byte 1. The key of a
// box has a leading byte 2, then the keys of its first and its last corner. All other keys have a
// leading byte 0.
type elements map[string]bool

// union holds the keys of a set in parts: a key is in the set if it is in any part. A part that is
// in a content is never changed, so a part that two unions share need not be compared.
type union []elements

func (u union) has(key string) bool {
	for _, part := range u {
		if part[key] {
			return true
		}
	}
	return false
}

// set is a set with the properties with which the kernel has to make it.
type set struct {
	key      nftables.SetDatatype
	concat   bool
	interval bool
	elements union
	// timeout is the timeout of each element; 0 means no timeout. Elements of a set with a timeout
	// are not part of the plan.
	timeout time.Duration
	// room bounds the elements that rules add; 0 if no rule adds any.
	room uint32
}

// content is the wanted content of the table, by the names in the kernel.
type content struct {
	chains map[string]*chain
	sets   map[string]*set
}

var directions = []policy.Direction{policy.Ingress, policy.Egress}

// chainPrefix is the prefix of the name of a plan's chain for one direction.
var chainPrefix = map[policy.Direction]string{policy.Ingress: "in_", policy.Egress: "out_"}

// maker makes the content for a plan, and keeps the parts that did not change since the last
// plan. The zero value is ready.
type maker struct {
	// groups holds the plan's groups that already have chains, keyed by name.
	groups map[string]*policy.Group
	chains map[string]*chain
	refer  counts
	// sets holds the sets of peers, unions and boxes, by their names without the suffix of a
	// family. They were made from the plan's sets in from. dependents holds, by the name of a set
	// of the plan, the names of the sets that contain it.
	sets       map[string]*made
	from       policy.SetMap
	dependents map[string][]string
	// boxed makes the maker turn all lines that can be boxes into boxes, for tests.
	boxed bool
	// options are the options of the plan that chains were made for.
	options policy.Options
	// members holds the sets of makeMembers. They were made from the plan membersOf.
	members   map[string]*set
	membersOf policy.Plan
	// inside holds the sets of makeInside. They were made from the plan insideOf.
	inside   map[string]*set
	insideOf policy.Plan
	// content is the last result of want.
	content content
}

// made holds a set of the kernel for each family, or nil for a family without one. A union has a
// part for each of its peers. A set of boxes of pods has a part for each partLines lines.
type made struct{ byFamily []*set }

// want returns the content of the table for a plan. The result is valid until the next call. want
// takes time in proportion to the sets of the kernel, and to the plan's sets that changed.
func (p *maker) want(plan *policy.Plan) *content {
	remade := p.makeChains(plan)
	changed, known := plan.Sets.ChangedSince(p.from)
	if remade || !known {
		p.keepSets(plan.Sets)
	} else {
		p.remakeSets(plan.Sets, changed)
	}
	p.from = plan.Sets

	c := &p.content
	if c.chains = p.chains; c.sets == nil {
		c.sets = map[string]*set{}
	}
	clear(c.sets)
	for name, m := range p.sets {
		c.add(name, m.byFamily)
	}
	maps.Copy(c.sets, p.refer.ports)
	p.makeMembers(plan)
	maps.Copy(c.sets, p.members)
	p.makeInside(plan)
	maps.Copy(c.sets, p.inside)
	return c
}

// add adds a set of peers, for each family that has one.
func (c *content) add(name string, made []*set) {
	for i, f := range families {
		if made[i] != nil {
			c.sets[name+f.suffix] = made[i]
		}
	}
}

// makeChains makes the chains of the plan's groups if the groups changed, and reports whether they
// did. Groups of the same name have the same chains and look up the same sets.
func (p *maker) makeChains(plan *policy.Plan) bool {
	if p.options != plan.Options {
		p.chains, p.refer, p.options = nil, counts{}, plan.Options
	} else if p.chains != nil && maps.Equal(p.groups, plan.Groups) {
		return false
	}

	w := &chainWriter{plan: plan, boxed: p.boxed, old: p.chains, chains: map[string]*chain{}}
	for _, g := range plan.Groups {
		for _, d := range directions {
			if g.Chains[d] != "" {
				w.add(d, plan.Chains[g.Chains[d]])
			}
		}
	}
	w.addHooks()
	for name, c := range w.chains {
		if p.chains[name] != c {
			p.refer.add(c.refer)
		}
	}
	for name, c := range p.chains {
		if w.chains[name] != c {
			p.refer.remove(c.refer)
		}
	}
	p.groups, p.chains = plan.Groups, w.chains
	return true
}

func ofFamily(ranges []policy.Range, i int) bool {
	return len(ranges) > 0 && ranges[0].First.Is4() == (i == 0)
}

// rangesOf returns the ranges of one family.
func rangesOf(ranges []policy.Range, i int) (out []policy.Range) {
	for _, r := range ranges {
		if indexOf(r.First) == i {
			out = append(out, r)
		}
	}
	return out
}

// peerSets returns the kernel's sets for a plan's set, by family, or nil for a family without one.
func peerSets(s *policy.Set) []*set {
	out := make([]*set, len(families))
	for i, f := range families {
		switch s.Kind {
		case policy.KindPods, policy.KindNodes:
			out[i] = &set{key: f.addr, elements: union{{}}}
		case policy.KindNamed:
			key, _ := nftables.ConcatSetType(f.addr, nftables.TypeInetProto,
				nftables.TypeInetService)
			out[i] = &set{key: key, concat: true, elements: union{{}}}
		case policy.KindBlock:
			// Chains refer to SetRanges of both families, even if it is empty.
			if own := rangesOf(s.Ranges, i); len(own) > 0 || s.Name == policy.SetRanges {
				out[i] = &set{key: f.addr, interval: true,
					elements: union{intervals(own)}}
			}
		}
	}

	for _, a := range s.Addrs {
		out[indexOf(a)].elements[0][key(a.AsSlice())] = true
	}
	for _, n := range s.Named {
		out[indexOf(n.Addr)].elements[0][key(append(n.Addr.AsSlice(),
			byte(n.Proto), 0, 0, 0, byte(n.Port>>8), byte(n.Port), 0, 0))] = true
	}
	return out
}

func indexOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func key(b []byte) string { return "\x00" + string(b) }

// keyRange is the leading byte of the key of a box.
const keyRange = "\x02"

// intervals returns the keys of starts and exclusive ends. A range to the end of the address space
// has no end.
func intervals(ranges []policy.Range) elements {
	e := elements{}
	for i, r := range ranges {
		e[key(r.First.AsSlice())] = true
		end := r.Last.Next()
		if end.IsValid() && (i+1 == len(ranges) || ranges[i+1].First != end) {
			e["\x01"+string(end.AsSlice())] = true
		}
	}
	return e
}

// makeMembers makes the sets of members of each group, and the pairs of toItself, if they changed.
func (p *maker) makeMembers(plan *policy.Plan) {
	if p.members != nil && maps.Equal(p.membersOf.Groups, plan.Groups) &&
		maps.Equal(p.membersOf.Members, plan.Members) && slices.Equal(p.membersOf.Own, plan.Own) {
		return
	}
	p.membersOf = policy.Plan{Groups: plan.Groups, Members: plan.Members, Own: plan.Own}
	sets := map[string]*set{}
	p.members = sets

	for _, f := range families {
		pair, _ := nftables.ConcatSetType(f.addr, f.addr)
		sets[f.self] = &set{key: pair, concat: true, elements: union{{}}}
		sets[f.own] = &set{key: f.addr, elements: union{{}}}
		sets[f.ended] = f.endedSet()
		for name := range plan.Groups {
			sets[f.members+name] = &set{key: f.addr, elements: union{{}}}
		}
	}
	for _, a := range plan.Own {
		sets[families[indexOf(a)].own].elements[0][key(a.AsSlice())] = true
	}
	for _, m := range plan.Members {
		for _, a := range m.Addrs {
			f := families[indexOf(a)]
			sets[f.members+m.Group].elements[0][key(a.AsSlice())] = true
			sets[f.self].elements[0][key(append(a.AsSlice(), a.AsSlice()...))] = true
		}
	}
}

// isNamed reports whether a set of peers, or a union, is of KindNamed.
func isNamed(name string) bool {
	return strings.HasPrefix(strings.TrimPrefix(name, unionPrefix), "n")
}

// isMembers reports whether the set holds members of a group, which the CNI plugin writes too.
func isMembers(name string) bool {
	return strings.HasPrefix(name, abi.NFTMembers4) || strings.HasPrefix(name, abi.NFTMembers6) ||
		name == abi.NFTSelf4 || name == abi.NFTSelf6
}
