package table

import (
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// behindAdmin ends the name of the chain that follows the Admin tier of another.
const behindAdmin = "_np"

// tier are the rules of a tier, in the order of its lines. What it denies goes to the chain
// denial, and what it passes to the chain pass; empty is return.
func tier(d policy.Direction, lines []policy.Line, sets map[string]*policy.Set, denial,
	pass string) (rules []rule) {
	doubted := map[policy.Interval]bool{}
	for _, l := range lines {
		if all := (policy.Interval{}); l.Doubts() && !doubted[l.Ports] && !doubted[all] {
			doubted[l.Ports] = true
			for _, f := range families {
				rules = append(rules, f.unknownPeer(d).and(toPorts(l.Ports)).verdict(
					expr.VerdictGoto, unknown))
			}
		}
		for _, m := range peers(d, l.Peer, sets) {
			m = m.and(toPorts(l.Ports))
			switch {
			case l.Action == policy.Deny:
				rules = append(rules, m.verdict(expr.VerdictGoto, denial))
			case l.Action == policy.Pass && pass != "":
				rules = append(rules, m.verdict(expr.VerdictGoto, pass))
			default:
				rules = append(rules, m.verdict(expr.VerdictReturn, ""))
			}
		}
	}
	return rules
}

// unknownPeer matches packets whose peer has an address of pods that no known pod has.
func (f family) unknownPeer(d policy.Direction) match {
	m := f.inSet(d, false, policy.SetRanges+f.suffix)
	name, _ := f.field(d, false)
	known := policy.SetKnown + f.suffix
	return match{m.text + " " + name + " != @" + known, append(slices.Clone(m.exprs),
		&expr.Lookup{SourceRegister: firstRegister, SetName: known, Invert: true})}
}

// addDenials adds the chains in which tiers drop. Their names are the reasons.
func addDenials(to map[string]*chain) {
	for _, reason := range []string{admin, baseline, unknown} {
		if to[reason] == nil {
			to[reason] = &chain{rules: []rule{logDrop(reason), drop(reason)}}
		}
	}
}

// shrinks reports whether less may be allowed than before. Where a tier denies, that may also come
// of a new element.
func (d *difference) shrinks(want *content) bool {
	if len(d.remove)+len(d.addChains)+len(d.delChains)+len(d.refill) > 0 {
		return true
	}
	for name := range d.add {
		if want.chains[admin] != nil && !isMembers(name) {
			return true
		}
	}
	return false
}
