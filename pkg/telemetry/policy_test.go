package telemetry

import (
	"strings"
	"testing"
)

func TestPolicyMetrics(t *testing.T) {
	s := busy()
	for name := range gather(t, metricsOf(s)) {
		if strings.HasPrefix(name, "kubeveil_policy") {
			t.Errorf("without policies there is %s", name)
		}
	}

	s.Policy = &Policy{Listed: true, Policies: 3, Pending: 2, Drafts: 4, OldestDraft: 1.5,
		NotEnforced: map[string]int{"NetworkPolicy": 0, "ClusterNetworkPolicy": 1},
		Ignored:     &IgnoredAddrs{OutsidePrefix: 4, Shared: 6},
		Drops:       map[string]uint64{"policy_ingress": 5}}
	families := gather(t, metricsOf(s))
	holds(t, families, []metric{
		{"kubeveil_policy_listed", "", 1},
		{"kubeveil_policy_policies", "", 3},
		{"kubeveil_policy_pending_pods", "", 2},
		{"kubeveil_policy_unplanned_namespaces", "", 4},
		{"kubeveil_policy_unplanned_oldest_seconds", "", 1.5},
		{"kubeveil_policy_not_enforced", "kind=NetworkPolicy", 0},
		{"kubeveil_policy_not_enforced", "kind=ClusterNetworkPolicy", 1},
		{"kubeveil_policy_ignored_addresses", "reason=outside_prefix", 4},
		{"kubeveil_policy_ignored_addresses", "reason=shared", 6},
		{"kubeveil_policy_dropped_total", "reason=policy_ingress", 5},
	})
}
