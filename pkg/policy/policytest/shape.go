package policytest

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// OwnPorts returns policies of a namespace for its pods with the label app. Together they have n
// lines of egress. Each line allows one address outside the cluster on one UDP port. Lines share a
// port only if there are more lines than ports. Every second address is of IPv6 if dual is set.
func OwnPorts(namespace, app string, n int, dual bool) (out []policy.Policy) {
	for first := 0; first < n; first += compile.MaxLines {
		var rules []policy.Rule
		for i := first; i < min(n, first+compile.MaxLines); i++ {
			port := uint16(1 + i%65535)
			rules = append(rules, policy.Rule{
				Peers: []policy.Peer{{Block: &policy.Block{CIDR: OwnPortsPeer(i, dual)}}},
				Ports: []policy.Port{{Proto: policy.UDP, First: port, Last: port}}})
		}
		out = append(out, policy.Policy{
			Name:     policy.Name{Namespace: namespace, Name: fmt.Sprint(app, "-ports-", first)},
			Isolates: [2]bool{false, true},
			Subjects: policy.Selector{{Key: "app", Values: []string{app}}},
			Rules:    [2][]policy.Rule{policy.Egress: rules}})
	}
	return out
}

// OwnPortsPeer returns the peer of line i of OwnPorts.
func OwnPortsPeer(i int, dual bool) netip.Prefix {
	a := netip.AddrFrom4([4]byte{100, 64 + byte(i>>16), byte(i >> 8), byte(i)})
	if dual && i%2 == 1 {
		a = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 13: byte(i >> 16), 14: byte(i >> 8),
			15: byte(i)})
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// Selectors returns policies of a namespace for its pods with the label app. Together they have n
// rules of ingress on one port. Each rule selects the peers that do not have one value of a label.
func Selectors(namespace, app string, policies, n int) (out []policy.Policy) {
	for i := range policies {
		var rules []policy.Rule
		for j := i * n / policies; j < (i+1)*n/policies; j++ {
			rules = append(rules, policy.Rule{Peers: []policy.Peer{{Pods: &policy.Selector{
				{Key: "tier", Op: policy.NotIn, Values: []string{fmt.Sprint("excluded-", j)}}}}},
				Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 80}}})
		}
		out = append(out, policy.Policy{
			Name:     policy.Name{Namespace: namespace, Name: fmt.Sprint(app, "-selectors-", i)},
			Isolates: [2]bool{true},
			Subjects: policy.Selector{{Key: "app", Values: []string{app}}},
			Rules:    [2][]policy.Rule{policy.Ingress: rules}})
	}
	return out
}
