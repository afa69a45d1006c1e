package explain

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// maxAllowing is the number of rules after which Allowing examines no further policy. A tenant may
// write thousands that allow the same flow.
const maxAllowing = 64

// Allowing returns the rules of policies that allow a flow in a direction of its pod, by the sets
// of a plan of p: the rule of the ClusterNetworkPolicy that accepts it, or each rule of a
// NetworkPolicy that matches, up to maxAllowing. It returns nil for a flow that no policy
// judges.
func Allowing(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) (
	rules []policy.RuleName) {
	if by := decide(p, plan, d, f); by.policy != "" {
		if by.action != policy.Accept {
			return nil
		}
		return []policy.RuleName{{Policy: by.policy, Direction: d.String(),
			Rule: DecidingRule(p, plan, d, f)}}
	}

	own, peer := f.Ends(d)
	eachIsolating(p, plan, d, own, func(m *policy.Member, pod *policy.Pod, c *compile.Namespaced) {
		if m.Problem == "" && len(rules) < maxAllowing {
			rules = append(rules, matching(c, plan, d, pod, peer, f)...)
		}
	})
	return rules
}

// matching returns the rules of a policy that match a flow, each once.
func matching(c *compile.Namespaced, plan *policy.Plan, d policy.Direction, pod *policy.Pod,
	peer netip.Addr, f policy.Flow) (rules []policy.RuleName) {
	c.Compile()
	for _, l := range c.LinesOf(d, pod) {
		if len(rules) >= maxAllowing {
			break
		}
		if matched, _ := plan.Matches(l, peer, f); !matched {
			continue
		}
		peers, _ := peerWords(c.Sets[l.Peer], plan.Sets.Get(l.Peer))
		r := policy.RuleName{Policy: c.Policy.Name.String(), Direction: d.String(),
			Rule: clip(peers + ", ports " + compile.PortWords(l, c.Sets[l.Peer]))}
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}
