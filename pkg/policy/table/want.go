package table

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

// Names of counters; the last three are also those of the chains in which tiers drop.
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

// Priorities. Postrouting is in front of all source NAT (100) and behind destination NAT. Input is
// behind IPVS (98 and 99).
const (
	priorityPost  = 95
	priorityInput = 101
)

// chain is a chain of the table; one without a hook is what others go to.
type chain struct {
	// make makes the rules: they are many, and needed only to write or to compare them.
	make     func(*fragments) []rule
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	// refer is to the sets that rules look up; of two families, the first one's chain has it.
	refer references
	// texts is known once the rules were made.
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

// summary describes the chain as it is read.
func (c *chain) summary(cached *fragments) summary {
	if c.texts == nil {
		c.rules(cached)
	}
	return summary{hook: c.hookText(), texts: *c.texts}
}

func (c *chain) hookText() string {
	return hookText(&nftables.Chain{Hooknum: c.hook, Priority: &c.priority})
}

// elements are keys of a set. The end of an interval has a leading byte 1. A box has a leading byte
// 2, the key of its first corner and that of its last. All else has a leading byte 0.
type elements map[string]bool

// union is the keys of a set: those that any of the parts has. Parts are not changed once a content
// has them, so a part that two unions share is not compared.
type union []elements

func (u union) has(key string) bool {
	for _, part := range u {
		if part[key] {
			return true
		}
	}
	return false
}

// set is a set and how the kernel has to make it.
type set struct {
	key      nftables.SetDatatype
	concat   bool
	interval bool
	elements union
	// timeout is of each element, 0 for none. Elements of a set with one are not the plan's.
	timeout time.Duration
	// room bounds the elements that rules add, 0 if none does.
	room uint32
}

// content is what the table has to contain, by the names in the kernel.
type content struct {
	chains map[string]*chain
	sets   map[string]*set
}

var directions = []policy.Direction{policy.Ingress, policy.Egress}

// chainPrefix begins the name of a plan's chain for one direction.
var chainPrefix = map[policy.Direction]string{policy.Ingress: "in_", policy.Egress: "out_"}

// planner makes contents, and keeps the parts that did not change. The zero value is ready.
type planner struct {
	// groups are the plan's of which chains were made, by name.
	groups map[string]*policy.Group
	chains map[string]*chain
	refer  counts
	// sets are those of peers, unions and boxes, by their names without the suffix of a family. from
	// are the plan's sets that they were made from, dependents are their names by those of the
	// plan's sets that they have.
	sets       map[string]*made
	from       policy.SetMap
	dependents map[string][]string
	// boxed makes boxes of all lines that can be one, for tests.
	boxed bool
	// allowOwnNode is that of the plan that chains were made for.
	allowOwnNode bool
	// members are the sets of makeMembers, and of is what they were made from.
	members map[string]*set
	of      policy.Plan
	// inside are the sets of makeInside, from these parts of a plan.
	inside   map[string]*set
	insideOf policy.Plan
	// content is what want returned.
	content content
}

// made is a set of the kernel for each family; nil where there is none. A union has a part for each
// of its peers, and boxes of pods have one for each partLines lines.
type made struct{ byFamily []*set }

// want returns what the table has to contain for a plan, until it is called again. It takes time in
// proportion to the sets of the kernel, and to the plan's sets that changed.
func (p *planner) want(plan *policy.Plan) *content {
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

// add adds a set of peers, of each family that has it.
func (c *content) add(name string, made []*set) {
	for i, f := range families {
		if made[i] != nil {
			c.sets[name+f.suffix] = made[i]
		}
	}
}

// makeChains makes the chains of the plan's groups, if these are others than before: the name of a
// group says all that its chains are, and which sets they look up. It reports whether it did.
func (p *planner) makeChains(plan *policy.Plan) bool {
	if p.allowOwnNode != plan.AllowOwnNode {
		p.chains, p.refer, p.allowOwnNode = nil, counts{}, plan.AllowOwnNode
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

// peerSets returns the sets of a plan's set, by family; nil where there is none.
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
			// Chains refer to SetRanges of both families, whatever it has.
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

// keyRange begins the key of a box.
const keyRange = "\x02"

// intervals are starts and exclusive ends; one to the end of the address space has no end.
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

// makeMembers makes the sets of members of each group, and the pairs of toItself, if these are
// others than before.
func (p *planner) makeMembers(plan *policy.Plan) {
	if p.members != nil && maps.Equal(p.of.Groups, plan.Groups) &&
		maps.Equal(p.of.Members, plan.Members) && slices.Equal(p.of.Own, plan.Own) {
		return
	}
	p.of = policy.Plan{Groups: plan.Groups, Members: plan.Members, Own: plan.Own}
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

// isMembers reports whether the plugin writes the set too.
func isMembers(name string) bool {
	return strings.HasPrefix(name, abi.NFTMembers4) || strings.HasPrefix(name, abi.NFTMembers6) ||
		name == abi.NFTSelf4 || name == abi.NFTSelf6
}
