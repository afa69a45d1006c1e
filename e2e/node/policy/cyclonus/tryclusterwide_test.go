package cyclonus_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// clusterCases are ClusterNetworkPolicies by name, in each of which BLOCK is a range with the pod
// z/c. cyclonus makes no such policies.
var clusterCases = []map[string]string{
	{"deny": `{"tier": "Admin", "priority": 9,
		"subject": {"namespaces": {"matchLabels": {"ns": "x"}}},
		"ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"ns": "y"}}}]}]}`},
	{"accept": `{"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "ingress": [
		{"action": "Accept", "from": [{"pods": {"namespaceSelector": {"matchLabels": {"ns": "z"}},
			"podSelector": {"matchLabels": {"pod": "a"}}}}]}]}`,
		"deny": `{"tier": "Admin", "priority": 6, "subject": {"pods": {
			"namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "In",
				"values": ["x", "y"]}]}, "podSelector": {"matchLabels": {"pod": "b"}}}},
			"ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}`},
	{"pass": `{"tier": "Admin", "priority": 1,
		"subject": {"namespaces": {"matchLabels": {"ns": "x"}}},
		"ingress": [{"action": "Pass", "from": [{"namespaces": {"matchLabels": {"ns": "x"}}}]},
			{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"ns": "z"}}}],
				"protocols": [{"tcp": {"destinationPort": {"number": 80}}}]}]}`,
		"baseline": `{"tier": "Baseline", "priority": 0, "subject": {"namespaces": {}},
		"ingress": [{"action": "Deny", "from": [{"namespaces": {}}],
			"protocols": [{"udp": {"destinationPort": {"range": {"start": 80, "end": 81}}}}]}]}`},
	{"egress": `{"tier": "Admin", "priority": 1,
		"subject": {"namespaces": {"matchLabels": {"ns": "y"}}},
		"egress": [{"action": "Accept", "to": [{"namespaces": {"matchLabels": {"ns": "y"}}}]},
			{"action": "Deny", "to": [{"networks": ["BLOCK"]}]}]}`},
	{"named": `{"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [
		{"action": "Deny", "to": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels":
			{"pod": "c"}}}}], "protocols": [{"destinationNamedPort": "serve-80-tcp"}]}]}`},
}

// clusterSets returns sets with ClusterNetworkPolicies: alone, and beside NetworkPolicies of sets.
func clusterSets(t *testing.T, first step, sets [][]networkingv1.NetworkPolicy) (out []triedSet) {
	t.Helper()
	around := ""
	for _, p := range first.Pods {
		if p.Namespace == "z" && p.Name == "c" {
			around = block(netip.MustParseAddr(p.Status.PodIP), 4)
		}
	}
	for i, c := range clusterCases {
		set := triedSet{clusterwide: map[string]string{}}
		for name, spec := range c {
			set.clusterwide[fmt.Sprintf("%s-%d", name, i)] = strings.ReplaceAll(spec, "BLOCK", around)
		}
		out = append(out, set)
		set.namespaced = sets[(i+1)*len(sets)/(len(clusterCases)+1)]
		out = append(out, set)
	}
	return out
}
