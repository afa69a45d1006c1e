package policyfeed

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// parsePod parses a Pod. It returns no value for pods that do not matter for policies on this node:
// finished pods, and host-network pods of other nodes.
func parsePod(o *object.Object, node string) feed.Parsed[policy.Pod] {
	w, ok := o.Content.(*wire.Pod)
	if !ok {
		return feed.Parsed[policy.Pod]{Problem: "not in protobuf form; it is left out"}
	}
	if w.Phase == "Succeeded" || w.Phase == "Failed" || w.HostNetwork && w.NodeName != node {
		return feed.Parsed[policy.Pod]{}
	}

	uid, mirror := o.Annotations[object.MirrorAnnotation]
	if !mirror {
		uid = string(o.UID)
	}
	p := policy.Pod{Name: policy.Name{Namespace: o.Namespace, Name: o.Name}, UID: uid,
		Labels: w.Labels, Node: w.NodeName, HostNetwork: w.HostNetwork, Mirror: mirror}
	if w.LabelsExcess || w.Excess {
		p.Labels, p.Excess = nil, true
		return feed.Parsed[policy.Pod]{Value: &p, Problem: fmt.Sprintf("it has more than %d "+
			"labels, %d named ports or %d addresses: policies that may select it deny its "+
			"packets, and no selector of a peer selects it", wire.MaxLabels, wire.MaxPorts,
			wire.MaxAddresses)}
	}

	var problem string
	ips := w.PodIPs
	if len(ips) == 0 && w.PodIP != "" {
		ips = []string{w.PodIP}
	}
	for _, text := range ips {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			problem = fmt.Sprintf("status.podIPs: %q is not an address of a pod; it is left out",
				text)
			continue
		}
		p.Addrs = append(p.Addrs, a)
	}

	for _, port := range w.Ports {
		proto, known := protocols[port.Protocol]
		if !known || port.Port <= 0 || port.Port > 65535 {
			continue
		}
		p.Ports = append(p.Ports, policy.NamedPort{Name: port.Name, Proto: proto,
			Port: uint16(port.Port)})
	}
	return feed.Parsed[policy.Pod]{Value: &p, Problem: problem, Elements: elementsOf(&p)}
}

// protocols are the values of core/v1 Protocol. An empty string means TCP, its default.
var protocols = map[string]policy.Proto{"": policy.TCP, "TCP": policy.TCP, "UDP": policy.UDP,
	"SCTP": policy.SCTP}

func parseNamespace(o *object.Object) feed.Parsed[policy.Namespace] {
	w, ok := o.Content.(*wire.Meta)
	if !ok {
		return feed.Parsed[policy.Namespace]{Problem: "not in protobuf form; it is left out"}
	}
	ns := policy.Namespace{Name: o.Name, Labels: w.Labels, Excess: w.LabelsExcess}
	var problem string
	if ns.Excess {
		problem = fmt.Sprintf("it has more than %d labels: no selector selects it, and "+
			"ClusterNetworkPolicies that may select it only deny", wire.MaxLabels)
	}
	return feed.Parsed[policy.Namespace]{Value: &ns, Problem: problem}
}

// parseNetworkPolicy parses a NetworkPolicy. If a part cannot be parsed, the policy is not left
// out: it becomes Invalid, so that it denies traffic.
func parseNetworkPolicy(o *object.Object) feed.Parsed[policy.Policy] {
	p := policy.Policy{Name: policy.Name{Namespace: o.Namespace, Name: o.Name}, Object: idOf(o)}
	w, ok := o.Content.(*wire.NetworkPolicy)
	if !ok {
		p.Isolates, p.Invalid = [2]bool{true, true}, "not in protobuf form"
		return feed.Parsed[policy.Policy]{Value: &p, Problem: p.Invalid + "; it denies everything"}
	}

	p.Isolates = policyTypes(w)
	subjects, err := parseSelector(&w.PodSelector)
	p.Subjects = subjects
	if err == nil {
		p.Rules[policy.Ingress], err = parseRules("ingress", w.Ingress)
	}
	if err == nil {
		p.Rules[policy.Egress], err = parseRules("egress", w.Egress)
	}
	switch {
	case err != nil:
	case w.SubjectsExcess:
		err = fmt.Errorf("podSelector has more than %d labels and values, so it selects all "+
			"pods of the namespace", wire.MaxSubjects)
	case w.Excess:
		err = fmt.Errorf("it has more than %d rules, peers, ports, ranges and label values",
			wire.MaxRules)
	case w.Unknown:
		err = fmt.Errorf("spec has a field that this version does not know")
	}
	if err != nil {
		p.Rules, p.Invalid = [2][]policy.Rule{}, err.Error()
		return feed.Parsed[policy.Policy]{Value: &p, Problem: p.Invalid + "; it denies everything",
			Elements: max(elementsOfSelector(p.Subjects), LeastPolicy)}
	}
	return feed.Parsed[policy.Policy]{Value: &p, Elements: max(w.Elements, LeastPolicy)}
}

// idOf returns the revision of an object.
func idOf(o *object.Object) policy.Object {
	return policy.Object{UID: string(o.UID), Generation: o.Generation}
}

// policyTypes returns the directions that a policy isolates. The default of networking/v1 is
// Ingress, and also Egress if the policy has egress rules. A type that this version does not know
// counts as both.
func policyTypes(w *wire.NetworkPolicy) (isolates [2]bool) {
	if len(w.PolicyTypes) == 0 {
		return [2]bool{true, w.HasEgress}
	}
	for _, t := range w.PolicyTypes {
		isolates[policy.Ingress] = isolates[policy.Ingress] || t != "Egress"
		isolates[policy.Egress] = isolates[policy.Egress] || t != "Ingress"
	}
	return isolates
}

func parseRules(what string, rules []wire.PolicyRule) (out []policy.Rule, err error) {
	for i, r := range rules {
		var rule policy.Rule
		for _, w := range r.Peers {
			peer, err := parsePeer(w)
			if err != nil {
				return nil, fmt.Errorf("spec.%s[%d]: %w", what, i, err)
			}
			rule.Peers = append(rule.Peers, peer)
		}
		for _, w := range r.Ports {
			port, err := parsePort(w)
			if err != nil {
				return nil, fmt.Errorf("spec.%s[%d]: %w", what, i, err)
			}
			rule.Ports = append(rule.Ports, port)
		}
		out = append(out, rule)
	}
	return out, nil
}

func parsePeer(w wire.PolicyPeer) (p policy.Peer, err error) {
	switch {
	case w.IPBlock != nil && (w.PodSelector != nil || w.NamespaceSelector != nil):
		return p, fmt.Errorf("a peer has ipBlock and a selector")
	case w.IPBlock != nil:
		p.Block = &policy.Block{}
		if p.Block.CIDR, err = object.ParseCIDR(w.IPBlock.CIDR); err != nil {
			return p, fmt.Errorf("ipBlock: %w", err)
		}
		for _, text := range w.IPBlock.Except {
			except, err := object.ParseCIDR(text)
			if err != nil {
				return p, fmt.Errorf("ipBlock.except: %w", err)
			}
			p.Block.Except = append(p.Block.Except, except)
		}
		return p, nil
	case w.PodSelector == nil && w.NamespaceSelector == nil:
		return p, fmt.Errorf("a peer has neither ipBlock nor a selector that this version knows")
	}

	for _, s := range []struct {
		from *wire.LabelSelector
		to   **policy.Selector
	}{{w.PodSelector, &p.Pods}, {w.NamespaceSelector, &p.Namespaces}} {
		if s.from == nil {
			continue
		}
		selector, err := parseSelector(s.from)
		if err != nil {
			return p, err
		}
		*s.to = &selector
	}
	return p, nil
}

func parsePort(w wire.PolicyPort) (p policy.Port, err error) {
	protocol := ""
	if w.Protocol != nil {
		protocol = *w.Protocol
	}
	proto, known := protocols[protocol]
	if !known {
		return p, fmt.Errorf("protocol %q is not known", protocol)
	}

	p.Proto = proto
	switch {
	case w.Port == nil && w.EndPort != nil:
		return p, fmt.Errorf("endPort without a port")
	case w.Port == nil:
	case w.Port.Type == 1:
		if p.Name = w.Port.StrVal; p.Name == "" || w.EndPort != nil {
			return p, fmt.Errorf("port %q: a name must not be empty nor have an endPort", p.Name)
		}
	case w.Port.Type != 0 || w.Port.IntVal < 1 || w.Port.IntVal > 65535:
		return p, fmt.Errorf("port %d is not between 1 and 65535", w.Port.IntVal)
	default:
		p.First, p.Last = uint16(w.Port.IntVal), uint16(w.Port.IntVal)
		if w.EndPort != nil {
			if *w.EndPort < w.Port.IntVal || *w.EndPort > 65535 {
				return p, fmt.Errorf("endPort %d is not between the port and 65535", *w.EndPort)
			}
			p.Last = uint16(*w.EndPort)
		}
	}

	return p, nil
}

// operators are the values of metav1.LabelSelectorOperator.
var operators = map[string]policy.Operator{"In": policy.In, "NotIn": policy.NotIn,
	"Exists": policy.Exists, "DoesNotExist": policy.DoesNotExist}

func parseSelector(w *wire.LabelSelector) (s policy.Selector, err error) {
	for key, value := range w.MatchLabels {
		s = append(s, policy.Requirement{Key: key, Op: policy.In, Values: []string{value}})
	}
	// Sort, because a map has no order, and an unchanged policy must have an equal result.
	slices.SortFunc(s, func(a, b policy.Requirement) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	for _, e := range w.MatchExpressions {
		op, known := operators[e.Operator]
		if !known || (op == policy.In || op == policy.NotIn) != (len(e.Values) > 0) {
			return nil, fmt.Errorf("selector: %s %q with %d values is not known", e.Key, e.Operator,
				len(e.Values))
		}
		s = append(s, policy.Requirement{Key: e.Key, Op: op, Values: e.Values})
	}
	return s, nil
}
