package policytest

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// AbsurdNamespace is the namespace of the policies that Absurd returns.
const AbsurdNamespace = "absurd"

// absurd is the number of rules, peers or the like in an absurd policy.
const absurd = 65000

// Absurd returns policies that exceed a bound, keyed by the part that does. Each also allows
// everything and selects the pods app=victim. In "subjects" the selector itself exceeds a bound.
func Absurd() map[string]policy.Policy {
	var ports []policy.Port
	var values []string
	var except []netip.Prefix
	for i := range absurd {
		n := uint16(1 + i/2*2) // odd: ports that touch would be one range
		ports = append(ports, policy.Port{Proto: []policy.Proto{policy.TCP, policy.UDP}[i%2],
			First: n, Last: n})
		values = append(values, fmt.Sprint("v", i))
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		except = append(except, netip.PrefixFrom(a, 25))
	}

	all := make(map[string]policy.Policy)
	for name, r := range map[string]policy.Rule{
		"ports": {Ports: ports},
		"peers": {Peers: []policy.Peer{{Pods: &policy.Selector{
			{Key: "app", Op: policy.NotIn, Values: values}}}}},
		"exceptions": {Peers: []policy.Peer{{Block: &policy.Block{
			CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: except}}}},
		"subjects": {},
	} {
		p := policy.Policy{Name: policy.Name{Namespace: AbsurdNamespace, Name: name},
			Isolates: [2]bool{true, true}}
		p.Subjects = policy.Selector{{Key: "app", Values: []string{"victim"}}}
		if name == "subjects" {
			p.Subjects[0].Values = append(values, "victim")
		}
		for d := range p.Rules {
			p.Rules[d] = []policy.Rule{{}, r}
		}
		all[name] = p
	}
	return all
}
