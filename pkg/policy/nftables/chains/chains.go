package chains

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// chainWriter makes the chains of a plan. Each chain of the plan becomes one chain of the kernel
// per direction and family: the rules that lead there have checked the family.
type chainWriter struct {
	plan *policy.Plan
	// boxed is Boxed of the Maker.
	boxed bool
	// old returns a chain of an earlier plan, or nil.
	old    func(name string) *Chain
	chains map[string]*Chain
}

// addGroups adds the chains of the plan's groups. The plan of Prepare lacks some.
func (w *chainWriter) addGroups() {
	for _, g := range w.plan.Groups {
		for _, d := range directions {
			if c := w.plan.Chains[g.Chains[d]]; c != nil {
				w.add(d, c)
			}
		}
	}
}

// add adds the chains that enforce one direction of a plan's chain. It reuses chains of the
// previous plan: chains of the same name have the same content.
func (w *chainWriter) add(d policy.Direction, from *policy.Chain) {
	arranged := false
	var grants []arrange.Grant
	var boxes []sets.Boxes
	for i, f := range families {
		name := chainPrefix[d] + from.Name + f.Suffix
		if w.chains[name] != nil {
			return
		}
		behind := name
		if len(from.Admin) > 0 {
			behind += behindAdmin
		}
		if old, rest := w.old(name), w.old(behind); old != nil && rest != nil {
			w.chains[name], w.chains[behind] = old, rest
			continue
		}

		if !arranged {
			lines := arrange.Arrange(from.Lines, w.boxed)
			arranged, grants, boxes = true, lines.Grants, sets.BoxesOf(lines)
		}
		var refer sets.References
		if i == 0 {
			refer = sets.ReferencesOf(from, grants, boxes)
		}
		rules := ruleWriter{direction: d, family: f, absent: w.absent(from, i),
			options: w.plan.Options}
		size := 1 + len(from.Admin) + len(from.Lines) + len(from.Baseline)
		w.chains[behind] = &Chain{lines: size, refer: refer, make: func(c *Fragments) []Rule {
			if from.Open {
				return rules.with(c).tier(from.Baseline, baseline, "")
			}
			return rules.with(c).isolating(grants, boxes)
		}}
		if behind != name {
			w.chains[name] = &Chain{lines: 1, make: func(c *Fragments) []Rule {
				return append(rules.with(c).tier(from.Admin, admin, behind),
					match{}.verdict(expr.VerdictGoto, behind))
			}}
		}
	}
	if len(from.Admin)+len(from.Baseline) > 0 {
		addDrops(w.chains, admin, baseline, unknown)
	}
}

// absent returns the peers of a chain without an address of a family: blocks of the other family.
func (w *chainWriter) absent(from *policy.Chain, family int) (out map[string]bool) {
	for _, lines := range [][]policy.Line{from.Admin, from.Lines, from.Baseline} {
		for _, l := range lines {
			if s := w.plan.Sets.Get(l.Peer); s != nil && s.Kind == policy.KindBlock &&
				!sets.OfFamily(s.Ranges, family) {
				if out == nil {
					out = map[string]bool{}
				}
				out[l.Peer] = true
			}
		}
	}
	return out
}

// Fragments caches matches that many rules share. The zero value is ready. A cache lives only while
// chains are written or compared.
type Fragments struct {
	peers map[string]match // by the direction, the family and the name of the set
	ports map[policy.Interval]match
}

// ruleWriter makes the rules of one direction for packets of one family.
type ruleWriter struct {
	direction policy.Direction
	family    family
	absent    map[string]bool
	options   policy.Options
	cached    *Fragments
}

func (w ruleWriter) with(cached *Fragments) *ruleWriter {
	w.cached = cached
	return &w
}

// peer returns a match for the peers of a line. ok is false if no packet can match.
func (w *ruleWriter) peer(name string) (m match, ok bool) {
	if name == "" || w.absent[name] {
		return m, name == ""
	}
	return w.inSet(name), true
}

// anyPeer returns a match for the peers of a group. ok is false if no packet can match.
func (w *ruleWriter) anyPeer(g sets.Group) (m match, ok bool) {
	if len(g.Peers) < 2 {
		return w.peer(g.PeerSet())
	}
	for _, name := range g.Peers {
		if !w.absent[name] {
			return w.inSet(g.PeerSet()), true
		}
	}
	return m, false
}

// inSet matches packets whose peer is in a set, without the suffix of the family.
func (w *ruleWriter) inSet(name string) match {
	key := w.direction.String() + w.family.Suffix + name
	m, has := w.cached.peers[key]
	if !has {
		if m = w.family.inSet(w.direction, false, name+w.family.Suffix); sets.IsNamed(name) {
			m = w.family.toNamed(name + w.family.Suffix)
		}
		if w.cached.peers == nil {
			w.cached.peers = map[string]match{}
		}
		w.cached.peers[key] = m
	}
	return m
}

func (w *ruleWriter) ports(i policy.Interval) match {
	m, has := w.cached.ports[i]
	if !has {
		m = toPorts(i)
		if w.cached.ports == nil {
			w.cached.ports = map[policy.Interval]match{}
		}
		w.cached.ports[i] = m
	}
	return m
}

// isolating returns the rules for the lines of NetworkPolicies.
func (w *ruleWriter) isolating(grants []arrange.Grant, boxes []sets.Boxes) (rules []Rule) {
	passes := func(m match) { rules = append(rules, m.verdict(expr.VerdictReturn, "")) }
	for _, grant := range grants {
		g := sets.Group(grant)
		switch m, some := w.anyPeer(g); {
		case !some:
		case len(g.Ports) > 1:
			passes(m.and(toPortsOf(g.PortSet())))
		default:
			// A port is compared faster than a peer is looked up, and seldom matches.
			passes(w.ports(g.Ports[0]).and(m))
		}
	}
	for _, b := range boxes {
		if b.Some(w.absent) {
			passes(w.family.inBoxes(w.direction, b.Name+w.family.Suffix))
		}
	}
	passes(w.family.toItself())
	if w.options.AllowOwnNode && w.direction == policy.Egress {
		passes(toNode())
	}
	return append(rules, drop(denied[w.direction]))
}

// inBoxes matches packets of the family whose peer, protocol and port are in a set.
func (f family) inBoxes(d policy.Direction, set string) match {
	name, offset := f.field(d, false)
	proto := firstRegister + f.Size/4
	return match{name + " . meta l4proto . th dport @" + set, encode(
		f.load(offset, firstRegister),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		loadPort(proto+1),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// addHooks adds the chains at hooks and the two that send packets to the chains of their groups.
func (w *chainWriter) addHooks() {
	for _, d := range directions {
		w.chains[d.String()] = fixed(w.dispatch(d)...)
	}
	egress, ingress := policy.Egress.String(), policy.Ingress.String()
	post := fixed(
		byHostProcess().verdict(expr.VerdictGoto, processes),
		setStamp(),
		known().verdict(expr.VerdictAccept, ""),
		related().verdict(expr.VerdictGoto, ofRelated),
		notKnown().verdict(expr.VerdictJump, ofUnknown),
		withoutHandshake().verdict(expr.VerdictJump, answers),
		fromPods(expr.CmpOpEq).verdict(expr.VerdictJump, egress),
		toPods(expr.CmpOpEq).verdict(expr.VerdictJump, ingress),
	)
	post.Hook, post.Priority = nftables.ChainHookPostrouting, priorityPost
	host := fixed(
		fromPods(expr.CmpOpNeq).verdict(expr.VerdictAccept, ""),
		setStamp(),
		knownOrRelated().verdict(expr.VerdictAccept, ""), // The chain host_errors judged errors.
		match{}.verdict(expr.VerdictJump, egress),
	)
	host.Hook, host.Priority = nftables.ChainHookInput, priorityInput
	w.chains[abi.NFTPolicyPost], w.chains[abi.NFTPolicyHost] = post, host

	w.chains[processes] = fixed(
		toPods(expr.CmpOpNeq).verdict(expr.VerdictAccept, ""),
		knownOrRelated().verdict(expr.VerdictAccept, ""),
		withoutHandshake().verdict(expr.VerdictJump, answers),
		match{}.verdict(expr.VerdictAccept, ""),
	)
	w.chains[answers] = fixed(dropEnded()...)
	addRelated(w.chains)
	addDrops(w.chains, denied[policy.Ingress], denied[policy.Egress], pending, midstream, foreign)
}

// fixed returns a chain of these rules.
func fixed(rules ...Rule) *Chain {
	return &Chain{make: func(*Fragments) []Rule { return rules }}
}

// dispatch returns the rules that send packets of one direction to the chains of their groups.
func (w *chainWriter) dispatch(d policy.Direction) (rules []Rule) {
	// The group that is not isolated comes first: it is usually most pods, and dropMidstream
	// follows it.
	isolated := func(g *policy.Group) int {
		return len(g.Chains[policy.Ingress] + g.Chains[policy.Egress])
	}
	groups := slices.SortedFunc(maps.Values(w.plan.Groups), func(a, b *policy.Group) int {
		return cmp.Or(cmp.Compare(isolated(a), isolated(b)), strings.Compare(a.Name, b.Name))
	})

	opened := false
	if d == policy.Egress {
		for _, f := range families {
			rules = append(rules, f.is().and(f.inSet(d, true, f.Own)).verdict(expr.VerdictReturn, ""))
		}
	}
	for _, g := range groups {
		if !opened && isolated(g) > 0 {
			rules, opened = append(rules, dropMidstream()), true
		}
		for _, f := range families {
			m := f.is().and(f.inSet(d, true, f.Members+g.Name))
			if g.Chains[d] == "" {
				rules = append(rules, m.verdict(expr.VerdictReturn, ""))
			} else {
				rules = append(rules, m.verdict(expr.VerdictGoto, chainPrefix[d]+g.Chains[d]+f.Suffix))
			}
		}
	}
	return append(rules, drop(pending))
}
