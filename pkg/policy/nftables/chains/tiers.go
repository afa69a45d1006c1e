package chains

import (
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// behindAdmin is the suffix of the chain that a packet enters after the Admin tier. The name before
// it is the name of the chain with that tier.
const behindAdmin = "_np"

// tier returns the rules of a tier for packets of the family, in the order of its lines. Packets
// that it denies go to the chain denial, and packets that it passes go to the chain pass. If pass
// is empty, they return to the calling chain.
func (w *ruleWriter) tier(lines []policy.Line, denial, pass string) (rules []Rule) {
	doubted := map[policy.Interval]bool{}
	for _, l := range lines {
		if all := (policy.Interval{}); l.Doubts() && !doubted[l.Ports] && !doubted[all] {
			doubted[l.Ports] = true
			rules = append(rules, w.ports(l.Ports).and(w.family.unknownPeer(w.direction)).verdict(
				expr.VerdictGoto, unknown))
		}
		m, some := w.peer(l.Peer)
		if !some {
			continue
		}
		m = w.ports(l.Ports).and(m)
		switch {
		case l.Action == policy.Deny:
			rules = append(rules, m.verdict(expr.VerdictGoto, denial))
		case l.Action == policy.Pass && pass != "":
			rules = append(rules, m.verdict(expr.VerdictGoto, pass))
		default:
			rules = append(rules, m.verdict(expr.VerdictReturn, ""))
		}
	}
	return rules
}

// unknownPeer matches packets of the family whose peer has an address of pods that no known pod
// has.
func (f family) unknownPeer(d policy.Direction) match {
	m := f.inSet(d, false, policy.SetRanges+f.Suffix)
	name, _ := f.field(d, false)
	known := policy.SetKnown + f.Suffix
	return match{m.Text + " " + name + " != @" + known, slices.Concat(m.Exprs,
		encode(&expr.Lookup{SourceRegister: firstRegister, SetName: known, Invert: true}))}
}
