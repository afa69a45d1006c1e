package policyfeed

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// clusterPolicySpec is the spec of a ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2).
type clusterPolicySpec struct {
	Tier     string              `json:"tier"`
	Priority int32               `json:"priority"`
	Subject  clusterPeer         `json:"subject"`
	Ingress  []clusterPolicyRule `json:"ingress"`
	Egress   []clusterPolicyRule `json:"egress"`
}

// clusterPolicyRule is a rule for ingress or egress. Peers are parsed one by one by
// parseClusterPeer.
type clusterPolicyRule struct {
	Name      string            `json:"name"`
	Action    string            `json:"action"`
	From      []json.RawMessage `json:"from"`
	To        []json.RawMessage `json:"to"`
	Protocols []clusterProtocol `json:"protocols"`
}

// clusterPeer is a peer or a subject. Exactly one of its fields is set.
type clusterPeer struct {
	Namespaces *metav1.LabelSelector `json:"namespaces"`
	Pods       *struct {
		NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
		PodSelector       metav1.LabelSelector `json:"podSelector"`
	} `json:"pods"`
	Nodes    *metav1.LabelSelector `json:"nodes"`
	Networks []string              `json:"networks"`
}

type clusterProtocol struct {
	TCP                  *clusterPort `json:"tcp"`
	UDP                  *clusterPort `json:"udp"`
	SCTP                 *clusterPort `json:"sctp"`
	DestinationNamedPort string       `json:"destinationNamedPort"`
}

type clusterPort struct {
	DestinationPort *struct {
		Number int32 `json:"number"`
		Range  *struct {
			Start int32 `json:"start"`
			End   int32 `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

// strict decodes JSON into v, and refuses fields that v does not have.
func strict(raw json.RawMessage, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// parseClusterPolicy parses a ClusterNetworkPolicy. If a part cannot be parsed, the policy is not
// left out: it becomes Invalid, so that it denies traffic.
func parseClusterPolicy(o *object.Object) feed.Parsed[policy.ClusterPolicy] {
	spec, denies, err := decodeClusterSpec(o.Spec)
	p := policy.ClusterPolicy{Name: o.Name, Denies: denies, Object: idOf(o)}

	p.Priority = spec.Priority
	switch spec.Tier {
	case "Admin":
	case "Baseline":
		p.Tier = policy.Baseline
	default:
		err = firstError(err, fmt.Errorf("tier %q is not known", spec.Tier))
	}
	subject, known, subjectErr := clusterSelectors(spec.Subject)
	if subjectErr == nil && (!known || len(spec.Subject.Networks) > 0) {
		subjectErr = fmt.Errorf("subject is not known, so that it is all pods")
	}
	if subjectErr == nil {
		p.Namespaces, p.Pods = *subject.Namespaces, *subject.Pods
	}
	err = firstError(err, subjectErr)
	for d, rules := range [2][]clusterPolicyRule{spec.Ingress, spec.Egress} {
		var ruleErr error
		p.Rules[d], ruleErr = parseClusterRules(policy.Direction(d), rules)
		err = firstError(err, ruleErr)
	}
	if err != nil {
		p.Rules, p.Invalid = [2][]policy.ClusterRule{}, err.Error()
		return feed.Parsed[policy.ClusterPolicy]{Value: &p,
			Problem: p.Invalid + "; it denies everything in its directions"}
	}
	return feed.Parsed[policy.ClusterPolicy]{Value: &p}
}

// decodeClusterSpec decodes a spec. If it returns an error, spec holds the parts that could be
// decoded. denies reports the directions that have rules, or both if they cannot be decoded.
func decodeClusterSpec(raw json.RawMessage) (spec clusterPolicySpec, denies [2]bool, err error) {
	if len(raw) > object.MaxPartJSON {
		return decodeLargeSpec(raw)
	}
	if err = strict(raw, &spec); err != nil {
		spec = clusterPolicySpec{}
		if json.Unmarshal(raw, &spec) != nil {
			return clusterPolicySpec{}, [2]bool{true, true}, err
		}
	}
	return spec, [2]bool{len(spec.Ingress) > 0, len(spec.Egress) > 0}, err
}

// decodeLargeSpec decodes the subject and the directions of a spec that is too large.
func decodeLargeSpec(raw json.RawMessage) (spec clusterPolicySpec, denies [2]bool, err error) {
	err = fmt.Errorf("spec has %d bytes, more than %d", len(raw), object.MaxPartJSON)
	var large struct {
		Tier     string                      `json:"tier"`
		Priority int32                       `json:"priority"`
		Subject  object.Bounded[clusterPeer] `json:"subject"`
		Ingress  object.Present              `json:"ingress"`
		Egress   object.Present              `json:"egress"`
	}
	if json.Unmarshal(raw, &large) != nil {
		return spec, [2]bool{true, true}, err
	}
	spec = clusterPolicySpec{Tier: large.Tier, Priority: large.Priority,
		Subject: large.Subject.Value}
	return spec, [2]bool{bool(large.Ingress), bool(large.Egress)}, err
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

var actions = map[string]policy.Action{"Accept": policy.Accept, "Deny": policy.Deny,
	"Pass": policy.Pass}

func parseClusterRules(d policy.Direction, rules []clusterPolicyRule) (out []policy.ClusterRule,
	err error) {
	for i, r := range rules {
		action, known := actions[r.Action]
		if !known {
			return nil, fmt.Errorf("%s[%d]: action %q is not known", d, i, r.Action)
		}
		peers, others := r.From, r.To
		if d == policy.Egress {
			peers, others = r.To, r.From
		}
		if len(others) > 0 {
			return nil, fmt.Errorf("%s[%d]: peers of the other direction", d, i)
		}

		rule := policy.ClusterRule{Action: action}
		for _, raw := range peers {
			of, known, err := parseClusterPeer(d, raw)
			if err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", d, i, err)
			}
			rule.Peers = append(rule.Peers, of...)
			rule.Unknown = rule.Unknown || !known
		}
		for _, w := range r.Protocols {
			ports, err := parseClusterPorts(w)
			if err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", d, i, err)
			}
			rule.Ports = append(rule.Ports, ports...)
		}
		out = append(out, rule)
	}
	return out, nil
}

// parseClusterPeer parses one peer. known reports whether the peer has a supported field.
// domainNames is not supported, and is treated like a field of a later version.
func parseClusterPeer(d policy.Direction, raw json.RawMessage) (peers []policy.Peer, known bool,
	err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, false, err
	}
	if fields["namespaces"] == nil && fields["pods"] == nil && fields["networks"] == nil &&
		fields["nodes"] == nil {
		return nil, false, nil
	}

	var w clusterPeer
	if err := strict(raw, &w); err != nil {
		return nil, false, err
	}
	if len(fields) != 1 || d == policy.Ingress && (fields["networks"] != nil ||
		fields["nodes"] != nil) {
		return nil, false, fmt.Errorf("a peer has two fields, or networks or nodes at ingress")
	}
	if w.Nodes != nil {
		nodes, err := clusterSelector(*w.Nodes)
		return []policy.Peer{{Nodes: &nodes}}, true, err
	}
	for _, text := range w.Networks {
		cidr, err := object.ParseCIDR(text)
		if err != nil {
			return nil, false, fmt.Errorf("networks: %w", err)
		}
		peers = append(peers, policy.Peer{Block: &policy.Block{CIDR: cidr}})
	}
	if fields["networks"] != nil {
		return peers, len(peers) > 0, nil
	}
	peer, known, err := clusterSelectors(w)
	return []policy.Peer{peer}, known, err
}

// clusterSelectors returns the selectors of a peer or subject that has namespaces or pods. known is
// false if it has neither.
func clusterSelectors(w clusterPeer) (p policy.Peer, known bool, err error) {
	var namespaces, pods metav1.LabelSelector
	switch {
	case w.Namespaces != nil && w.Pods != nil:
		return p, false, fmt.Errorf("namespaces and pods are both set")
	case w.Namespaces != nil:
		namespaces = *w.Namespaces
	case w.Pods != nil:
		namespaces, pods = w.Pods.NamespaceSelector, w.Pods.PodSelector
	default:
		return p, false, nil
	}

	inNamespaces, err := clusterSelector(namespaces)
	if err != nil {
		return p, false, err
	}
	ofPods, err := clusterSelector(pods)
	return policy.Peer{Namespaces: &inNamespaces, Pods: &ofPods}, true, err
}

func clusterSelector(from metav1.LabelSelector) (policy.Selector, error) {
	s := wire.LabelSelector{MatchLabels: from.MatchLabels}
	for _, e := range from.MatchExpressions {
		s.MatchExpressions = append(s.MatchExpressions,
			wire.Expression{Key: e.Key, Operator: string(e.Operator), Values: e.Values})
	}
	return parseSelector(&s)
}

// parseClusterPorts parses one entry of protocols. A named port matches ports of any protocol.
func parseClusterPorts(w clusterProtocol) (ports []policy.Port, err error) {
	for proto, of := range map[policy.Proto]*clusterPort{policy.TCP: w.TCP, policy.UDP: w.UDP,
		policy.SCTP: w.SCTP} {
		if of == nil {
			continue
		}
		port := policy.Port{Proto: proto}
		if at := of.DestinationPort; at != nil {
			first, last := at.Number, at.Number
			if at.Range != nil && at.Number == 0 {
				first, last = at.Range.Start, at.Range.End
			} else if at.Range != nil {
				return nil, fmt.Errorf("a port has a number and a range")
			}
			if first < 1 || last < first || last > 65535 {
				return nil, fmt.Errorf("ports %d-%d are not between 1 and 65535", first, last)
			}
			port.First, port.Last = uint16(first), uint16(last)
		}
		ports = append(ports, port)
	}

	if w.DestinationNamedPort != "" {
		for _, proto := range []policy.Proto{policy.TCP, policy.UDP, policy.SCTP} {
			ports = append(ports, policy.Port{Proto: proto, Name: w.DestinationNamedPort})
		}
		if len(ports) > 3 {
			return nil, fmt.Errorf("a protocol has a named port and another field")
		}
	}
	if len(ports) == 0 || w.DestinationNamedPort == "" && len(ports) > 1 {
		return nil, fmt.Errorf("a protocol has no field that this version knows, or several")
	}
	return ports, nil
}
