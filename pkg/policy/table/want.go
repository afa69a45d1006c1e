package table

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

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
)

// Priorities. Postrouting is in front of all source NAT (100) and behind destination NAT. Input is
// behind IPVS (98 and 99).
const (
	priorityPost  = 95
	priorityInput = 101
)

// chain is a chain of the table; one without a hook is what others go to.
type chain struct {
	rules []rule
	// lines are the texts of the hook and of the rules, once they were asked for.
	lines    []string
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
}

// elements are the keys of a set; the end of an interval has a leading byte 1, all else 0.
type elements map[string]bool

// set is a set and how the kernel has to make it.
type set struct {
	key      nftables.SetDatatype
	concat   bool
	interval bool
	elements elements
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
	chains map[string]*chain      // by name
	sets   map[*policy.Set][]*set // by what they are made from, one a family
	// allowOwnNode is that of the plan that chains were made for.
	allowOwnNode bool
}

// want returns what the table has to contain for a plan.
func (p *planner) want(plan *policy.Plan) *content {
	c := &content{chains: map[string]*chain{}, sets: map[string]*set{}}
	chains, sets := map[string]*chain{}, map[*policy.Set][]*set{}
	if p.allowOwnNode != plan.AllowOwnNode {
		p.chains, p.allowOwnNode = nil, plan.AllowOwnNode
	}
	for name, s := range plan.Sets {
		made := p.sets[s]
		if made == nil {
			made = peerSets(s)
		}
		sets[s] = made
		for i, f := range families {
			if made[i] != nil {
				c.sets[name+f.suffix] = made[i]
			}
		}
	}

	for _, g := range plan.Groups {
		for _, d := range directions {
			if g.Chains[d] == "" {
				continue
			}
			p.addChain(chains, d, plan.Chains[g.Chains[d]], plan.Sets)
		}
	}
	maps.Copy(c.chains, chains)
	p.chains, p.sets = chains, sets

	addMembers(c, plan)
	addHooks(c, plan)
	return c
}

// addChain adds what enforces one direction of a plan's chain.
func (p *planner) addChain(to map[string]*chain, d policy.Direction, from *policy.Chain,
	sets map[string]*policy.Set) {
	name := chainPrefix[d] + from.Name
	if to[name] != nil {
		return
	}
	behind := name
	if len(from.Admin) > 0 {
		behind += behindAdmin
		if to[name] = p.chains[name]; to[name] == nil {
			to[name] = &chain{rules: append(tier(d, from.Admin, sets, admin, behind),
				match{}.verdict(expr.VerdictGoto, behind))}
		}
	}
	if to[behind] = p.chains[behind]; to[behind] == nil {
		if from.Open {
			to[behind] = &chain{rules: tier(d, from.Baseline, sets, baseline, "")}
		} else {
			to[behind] = p.isolating(d, from, sets)
		}
	}
	if len(from.Admin)+len(from.Baseline) > 0 {
		addDenials(to)
	}
}

// isolating is the chain of one direction of NetworkPolicies.
func (p *planner) isolating(d policy.Direction, from *policy.Chain,
	sets map[string]*policy.Set) *chain {
	c := &chain{}
	for _, l := range from.Lines {
		for _, m := range peers(d, l.Peer, sets) {
			c.rules = append(c.rules, m.and(toPorts(l.Ports)).verdict(expr.VerdictReturn, ""))
		}
	}
	for _, f := range families {
		c.rules = append(c.rules, f.toItself().verdict(expr.VerdictReturn, ""))
	}
	if p.allowOwnNode && d == policy.Egress {
		c.rules = append(c.rules, toNode().verdict(expr.VerdictReturn, ""))
	}
	c.rules = append(c.rules, logDrop(chainPrefix[d]+from.Name), drop(denied[d]))
	return c
}

// peers matches the peers of a line, in each family where there can be some.
func peers(d policy.Direction, name string, sets map[string]*policy.Set) (out []match) {
	if name == "" {
		return []match{{}}
	}
	s := sets[name]
	for i, f := range families {
		switch {
		case s.Kind == policy.KindNamed:
			out = append(out, f.toNamed(name+f.suffix))
		case s.Kind == policy.KindBlock && !ofFamily(s.Ranges, i):
		default:
			out = append(out, f.inSet(d, false, name+f.suffix))
		}
	}
	return out
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
			out[i] = &set{key: f.addr, elements: elements{}}
		case policy.KindNamed:
			key, _ := nftables.ConcatSetType(f.addr, nftables.TypeInetProto,
				nftables.TypeInetService)
			out[i] = &set{key: key, concat: true, elements: elements{}}
		case policy.KindBlock:
			// Chains refer to SetRanges of both families, whatever it has.
			if ofFamily(s.Ranges, i) || s.Name == policy.SetRanges {
				out[i] = &set{key: f.addr, interval: true,
					elements: intervals(rangesOf(s.Ranges, i))}
			}
		}
	}

	for _, a := range s.Addrs {
		out[indexOf(a)].elements[key(a.AsSlice())] = true
	}
	for _, n := range s.Named {
		out[indexOf(n.Addr)].elements[key(append(n.Addr.AsSlice(),
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

// addMembers adds the sets of members of each group, and the pairs of toItself.
func addMembers(c *content, plan *policy.Plan) {
	for _, f := range families {
		pair, _ := nftables.ConcatSetType(f.addr, f.addr)
		c.sets[f.self] = &set{key: pair, concat: true, elements: elements{}}
		c.sets[f.own] = &set{key: f.addr, elements: elements{}}
		for name := range plan.Groups {
			c.sets[f.members+name] = &set{key: f.addr, elements: elements{}}
		}
	}
	for _, a := range plan.Own {
		c.sets[families[indexOf(a)].own].elements[key(a.AsSlice())] = true
	}
	for _, m := range plan.Members {
		for _, a := range m.Addrs {
			f := families[indexOf(a)]
			c.sets[f.members+m.Group].elements[key(a.AsSlice())] = true
			c.sets[f.self].elements[key(append(a.AsSlice(), a.AsSlice()...))] = true
		}
	}
}

// addHooks adds the chains at hooks and the two that send packets to the chains of their groups.
func addHooks(c *content, plan *policy.Plan) {
	// The group that is not isolated comes first: it is usually most pods, and dropMidstream
	// follows it.
	isolated := func(g *policy.Group) int {
		return len(g.Chains[policy.Ingress] + g.Chains[policy.Egress])
	}
	groups := slices.SortedFunc(maps.Values(plan.Groups), func(a, b *policy.Group) int {
		return cmp.Or(cmp.Compare(isolated(a), isolated(b)), strings.Compare(a.Name, b.Name))
	})
	for _, d := range directions {
		to := &chain{}
		opened := false
		for _, f := range families {
			if d == policy.Egress {
				to.rules = append(to.rules, f.inSet(d, true, f.own).verdict(expr.VerdictReturn, ""))
			}
		}
		for _, g := range groups {
			if !opened && isolated(g) > 0 {
				to.rules, opened = append(to.rules, dropMidstream()), true
			}
			for _, f := range families {
				m := f.inSet(d, true, f.members+g.Name)
				if g.Chains[d] == "" {
					to.rules = append(to.rules, m.verdict(expr.VerdictReturn, ""))
				} else {
					to.rules = append(to.rules, m.verdict(expr.VerdictGoto,
						chainPrefix[d]+g.Chains[d]))
				}
			}
		}
		to.rules = append(to.rules, drop(pending))
		c.chains[d.String()] = to
	}

	sends := ofPods("iifgroup", expr.MetaKeyIIFGROUP).verdict(expr.VerdictJump,
		policy.Egress.String())
	c.chains[abi.NFTPolicyPost] = &chain{hook: nftables.ChainHookPostrouting, priority: priorityPost,
		rules: []rule{
			setStamp(),
			known().verdict(expr.VerdictAccept, ""),
			byHostProcess().verdict(expr.VerdictAccept, ""),
			sends,
			ofPods("oifgroup", expr.MetaKeyOIFGROUP).verdict(expr.VerdictJump,
				policy.Ingress.String()),
		}}
	c.chains[abi.NFTPolicyHost] = &chain{hook: nftables.ChainHookInput, priority: priorityInput,
		rules: []rule{
			setStamp(),
			known().verdict(expr.VerdictAccept, ""),
			sends,
		}}
}

// isMembers reports whether the plugin writes the set too.
func isMembers(name string) bool {
	return strings.HasPrefix(name, abi.NFTMembers4) || strings.HasPrefix(name, abi.NFTMembers6) ||
		name == abi.NFTSelf4 || name == abi.NFTSelf6
}
