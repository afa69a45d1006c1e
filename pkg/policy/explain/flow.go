package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// MaxNamed bounds the policies that a Names names. A tenant may write thousands for one pod.
const MaxNamed = 8

// Names names policies, sorted. More counts the policies beyond MaxNamed.
type Names struct {
	Some []string
	More int
}

func (n *Names) add(name policy.Name) {
	if len(n.Some) >= MaxNamed {
		n.More++
		return
	}
	n.Some = append(n.Some, name.String())
}

// Isolating returns the policies that isolate the pod that has an address, in a direction of a
// plan.
func Isolating(p *planner.Planner, plan *policy.Plan, d policy.Direction,
	own netip.Addr) (names Names) {
	eachIsolating(p, plan, d, own, func(_ *policy.Member, _ *policy.Pod, c *compile.Namespaced) {
		names.add(c.Policy.Name)
	})
	return names
}

// eachIsolating calls f for each policy that isolates the pod that has the address own, sorted.
func eachIsolating(p *planner.Planner, plan *policy.Plan, d policy.Direction, own netip.Addr,
	f func(*policy.Member, *policy.Pod, *compile.Namespaced)) {
	for key, m := range plan.Members {
		pod := p.Pod(key.Name)
		if pod == nil || !slices.Contains(m.Addrs, own) {
			continue
		}
		for _, name := range m.Policies {
			if c := p.Policy(name); c != nil && c.Policy.Isolates[d] {
				f(m, pod, c)
			}
		}
	}
}

// Flow returns the policies that isolate the pod of a flow in a direction, and which of these
// allow the flow, by the sets of a plan.
func Flow(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) (isolating,
	allowing Names) {
	own, peer := f.Ends(d)
	eachIsolating(p, plan, d, own, func(m *policy.Member, pod *policy.Pod, c *compile.Namespaced) {
		c.Compile()
		isolating.add(c.Policy.Name)
		if m.Problem == "" && slices.ContainsFunc(c.LinesOf(d, pod), func(l policy.Line) bool {
			matched, _ := plan.Matches(l, peer, f)
			return matched
		}) {
			allowing.add(c.Policy.Name)
		}
	})
	return isolating, allowing
}

// Decider returns the ClusterNetworkPolicy whose line decides a flow in a direction of its pod, and
// the line's action, by the sets of a plan. The name is empty if no line accepts or denies the
// flow.
func Decider(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) (name string,
	action policy.Action) {
	by := decide(p, plan, d, f)
	return by.policy, by.action
}

// maxRule bounds the bytes of a rule in words.
const maxRule = 512

// clip cuts the words of a rule to maxRule bytes.
func clip(words string) string {
	if len(words) <= maxRule {
		return words
	}
	return strings.ToValidUTF8(words[:maxRule], "") + "…"
}

// DecidingRule returns the line of Decider in words, or "" if no line decides.
func DecidingRule(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) string {
	by := decide(p, plan, d, f)
	if by.policy == "" {
		return ""
	}
	peers, _ := peerWords(by.def, plan.Sets.Get(by.line.Peer))
	words := fmt.Sprintf("%s %s, ports %s", by.line.Action, peers,
		compile.PortWords(by.line, by.def))
	if by.unknown {
		words += "; the pod that has the address is unknown"
	}
	return clip(words)
}

// decider is the line that decides a flow. If policy is empty, no line decides.
type decider struct {
	policy string
	action policy.Action
	line   policy.Line
	def    *compile.Definition
	// unknown reports whether the peer is not known and the line may be meant for it.
	unknown bool
}

func decide(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) decider {
	none := decider{action: policy.Pass}
	own, peer := f.Ends(d)
	for key, m := range plan.Members {
		pod, g := p.Pod(key.Name), plan.Groups[m.Group]
		if pod == nil || g == nil || !slices.Contains(m.Addrs, own) {
			continue
		}
		chain := plan.Chains[g.Chains[d]]
		if chain == nil || m.Problem != "" {
			return none
		}
		for _, tier := range []policy.Tier{policy.Admin, policy.Baseline} {
			if tier == policy.Baseline && !chain.Open {
				break
			}
			if by := deciderOf(p, plan, m, pod, tier, d, peer, f); by.action != policy.Pass {
				return by
			}
		}
		return none
	}
	return none
}

// deciderOf returns the line that decides in one tier. The action Pass means that the tier does not
// decide.
func deciderOf(p *planner.Planner, plan *policy.Plan, m *policy.Member, pod *policy.Pod,
	tier policy.Tier, d policy.Direction, peer netip.Addr, f policy.Flow) decider {
	for _, name := range m.ClusterPolicies {
		c := p.ClusterPolicy(name)
		if c == nil || c.Policy.Tier != tier || !c.Policy.Affects(d) {
			continue
		}
		c.Compile()
		for _, l := range c.LinesOf(d, pod) {
			switch matched, unknown := plan.Matches(l, peer, f); {
			case unknown:
				return decider{name, policy.Deny, l, c.Sets[l.Peer], true}
			case matched && l.Action == policy.Pass:
				return decider{action: policy.Pass}
			case matched:
				return decider{name, l.Action, l, c.Sets[l.Peer], false}
			}
		}
	}
	return decider{action: policy.Pass}
}
