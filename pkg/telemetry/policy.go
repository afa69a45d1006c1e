package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Policy describes the state of NetworkPolicy on the node.
type Policy struct {
	// Listed reports whether pods, namespaces and policies were listed.
	Listed bool `json:"listed"`
	// Told is the revision of all policies that the API server has sent; Revision is the revision
	// of the policies in force. A revision is a hash that is the same on all nodes. Either is empty
	// until it is known after veild's start.
	Told     string `json:"told,omitempty"`
	Revision string `json:"revision,omitempty"`
	// Policies counts the policies that select a pod of this node. Groups, Chains and Sets count
	// what they compile to.
	Policies int `json:"policies"`
	Groups   int `json:"groups"`
	Chains   int `json:"chains"`
	Sets     int `json:"sets"`
	// NotEnforced counts by kind the policies that select a pod of this node and are not enforced
	// as written: they deny more than their text.
	NotEnforced map[string]int `json:"notEnforced,omitempty"`
	// Elements counts the elements of the sets of peers.
	Elements int `json:"elements"`
	// Members counts the pods whose traffic policies decide. Pending counts the pods that cannot
	// send or receive until their policies are known.
	Members int `json:"members"`
	Pending int `json:"pending"`
	// Drafts counts the namespaces with a large change of policies that is not planned yet.
	// OldestDraft is how long the oldest of these changes has waited, in seconds.
	Drafts      int     `json:"drafts"`
	OldestDraft float64 `json:"oldestDraftSeconds,omitempty"`
	// FastPath counts pods whose packets bypass netfilter. It is nil where no pod can have the fast
	// path.
	FastPath *int `json:"fastPath,omitempty"`
	// Ignored describes addresses that do not identify a pod.
	Ignored *IgnoredAddrs `json:"ignored,omitempty"`
	// Revoked counts known connections that were deleted because they were no longer allowed.
	Revoked uint64 `json:"revoked"`
	// Drops counts dropped packets by reason.
	Drops map[string]uint64 `json:"drops,omitempty"`
}

// IgnoredAddrs describes addresses that pods of the cluster claim and that policies ignore.
type IgnoredAddrs struct {
	// OutsidePrefix counts addresses outside the pod prefixes of the pod's node. Shared counts
	// addresses that several pods claim.
	OutsidePrefix int `json:"outsidePrefix"`
	Shared        int `json:"shared"`
	// Some names a few of them, with their pods.
	Some []string `json:"some,omitempty"`
}

var (
	policyListedDesc = desc("policy_listed",
		"Whether pods, namespaces and network policies were listed since veild began: 1 or 0.")
	policyPoliciesDesc    = desc("policy_policies", "Network policies that select a pod of this node.")
	policyNotEnforcedDesc = desc("policy_not_enforced",
		"Network policies that select a pod of this node and deny more than is written, by kind.",
		"kind")
	policyGroupsDesc   = desc("policy_groups", "Groups of pods to which the same policies apply.")
	policyElementsDesc = desc("policy_elements", "Elements of the sets of peers.")
	policyMembersDesc  = desc("policy_members", "Pods of this node to which policies apply.")
	policyPendingDesc  = desc("policy_pending_pods",
		"Pods of this node that are mute, because their policies are not known yet.")
	policyDraftsDesc = desc("policy_unplanned_namespaces",
		"Namespaces with a large change of policies that is not planned yet.")
	policyOldestDraftDesc = desc("policy_unplanned_oldest_seconds",
		"How long the oldest large change of policies that is not planned yet has waited; 0 if all "+
			"are planned.")
	policyIgnoredDesc = desc("policy_ignored_addresses",
		"Addresses that pods of the cluster claim, but that network policies do not accept as "+
			"pods' addresses, by reason: outside_prefix (outside the pod prefixes of the pod's "+
			"node) or shared (claimed by several pods).", "reason")
	policyRevokedDesc = desc("policy_revoked_connections_total",
		"Known connections that were deleted because a changed policy no longer allows them.")
	policyDroppedDesc = desc("policy_dropped_total",
		"Packets that network policies dropped, by reason.", "reason")
)

func collectPolicy(p *Policy, gauge gaugeFunc, counter counterFunc) {
	if p == nil {
		return
	}
	gauge(policyListedDesc, one(p.Listed))
	gauge(policyPoliciesDesc, float64(p.Policies))
	for kind, n := range p.NotEnforced {
		gauge(policyNotEnforcedDesc, float64(n), kind)
	}
	gauge(policyGroupsDesc, float64(p.Groups))
	gauge(policyElementsDesc, float64(p.Elements))
	gauge(policyMembersDesc, float64(p.Members))
	gauge(policyPendingDesc, float64(p.Pending))
	gauge(policyDraftsDesc, float64(p.Drafts))
	gauge(policyOldestDraftDesc, p.OldestDraft)
	if i := p.Ignored; i != nil {
		gauge(policyIgnoredDesc, float64(i.OutsidePrefix), "outside_prefix")
		gauge(policyIgnoredDesc, float64(i.Shared), "shared")
	}
	counter(policyRevokedDesc, p.Revoked)
	for reason, n := range p.Drops {
		counter(policyDroppedDesc, n, reason)
	}
}

func newPolicyProgramming() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: "policy", Name: "programming_duration_seconds",
		Help: "Time from the arrival of a change of pods, namespaces or network policies until " +
			"it is in force. Changes that are made together count once, from the first arrival.",
		Buckets: []float64{.001, .002, .003, .005, .0075, .01, .025, .05, .1, .25, .5, 1, 2.5},
	})
}

// ObservePolicy records how long a change of policies took. The first call registers the metric, so
// that it does not exist without policies.
func (m *Metrics) ObservePolicy(d time.Duration) {
	m.policed.Do(func() { m.Registry.MustRegister(m.policing) })
	m.policing.Observe(d.Seconds())
}

// Pages of the admin socket about policies. The answers are types of package keeper: a List; a
// policy.PodView for ?pod=NAMESPACE/NAME; a Trace for ?from=END&to=END&protocol=6&port=80, where an
// end is NAMESPACE/NAME or an address; and a Progress.
const (
	PoliciesPath       = "/v1/policies"
	PolicyPodPath      = "/v1/policy/pod"
	PolicyTracePath    = "/v1/policy/trace"
	PolicyProgressPath = "/v1/policy/progress"
)

// PolicySeenPage takes a policy.Handed by POST, which may be empty, and ?namespace=NAME. Its answer
// is a suggest.Seen.
const PolicySeenPage = "POST /v1/policy/seen"

// PolicyTryPage takes a policy.Written by POST. Its answer is a Tried of package keeper.
const PolicyTryPage = "POST /v1/policy/try"
