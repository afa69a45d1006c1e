package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/interpret"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// Question describes a connection. Its Trace reports whether it is allowed.
type Question struct {
	// From and To are pods as NAMESPACE/NAME, or addresses.
	From, To string
	Proto    policy.Proto
	// Port is the destination port; 0 for protocols without ports.
	Port uint16
	// About makes it a question about an ICMP error: may From send To an error that quotes a packet
	// that To had sent to About? About is a pod or an address, as From and To are. Empty means that
	// the question is not about an error.
	About string
}

// Trace is the answer to a Question.
type Trace struct {
	// Node is the node that answers.
	Node string `json:"node"`
	From string `json:"from"`
	To   string `json:"to"`
	// Paths are one for each address family that both ends have.
	Paths []Path `json:"paths"`
	// Differs reports whether the kernel does not judge as the plan in force.
	Differs bool `json:"differs"`
	// Note is a sentence about what may change the answer soon. It is empty if nothing may.
	Note string `json:"note,omitempty"`
}

// Path is a connection between two addresses.
type Path struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	// Sides are the egress of From and the ingress of To.
	Sides []Side `json:"sides"`
}

// Side is the judgement about one end of a connection.
type Side struct {
	Direction string `json:"direction"`
	// Pod is the namespace/name. It is empty if the end is not a pod.
	Pod string `json:"pod,omitempty"`
	// Here reports whether this node judges the side. If not, Why has the reason: another node
	// judges it, the pod is not attached yet, or the end is not a pod.
	Here bool `json:"here"`
	// Plan and Kernel are verdicts: "allow" or the reason of the drop. Kernel is "unreadable" if
	// the table has something that the daemon does not write, which Why names.
	Plan   string `json:"plan,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	// Rule is the rule in the kernel that decided.
	Rule    string `json:"rule,omitempty"`
	Differs bool   `json:"differs,omitempty"`
	// Isolating are the policies that isolate the side. Allowing are the policies among them that
	// allow the connection. Each names at most explain.MaxNamed; the numbers count the others.
	Isolating     []string `json:"isolating,omitempty"`
	MoreIsolating int      `json:"moreIsolating,omitempty"`
	Allowing      []string `json:"allowing,omitempty"`
	MoreAllowing  int      `json:"moreAllowing,omitempty"`
	// Cluster is the ClusterNetworkPolicy that decides. It is empty if no such policy does.
	Cluster string `json:"cluster,omitempty"`
	Why     string `json:"why,omitempty"`

	packet interpret.Packet
}

// Judge answers questions by a plan. Its methods must not run beside changes of the Planner.
type Judge struct {
	Planner *planner.Planner
	Plan    *policy.Plan
	// Node is the name of this node, and Own its addresses.
	Node string
	Own  map[netip.Addr]bool
}

// Trace judges a connection by the plan. AskKernel then adds the verdicts of the kernel.
func (j Judge) Trace(q Question) (*Trace, error) {
	from, err := j.end(q.From)
	if err != nil {
		return nil, err
	}
	to, err := j.end(q.To)
	if err != nil {
		return nil, err
	}
	if !from.here && !to.here {
		return nil, fmt.Errorf("neither end is a pod of node %s: %s", j.Node, elsewhere(from, to))
	}

	about := end{addrs: []netip.Addr{{}}}
	if q.About != "" {
		if about, err = j.end(q.About); err != nil {
			return nil, err
		}
	}

	t := &Trace{Node: j.Node, From: q.From, To: q.To}
	for _, src := range from.addrs {
		for _, dst := range to.addrs {
			quotes, has := ofFamily(about.addrs, src)
			if src.Is4() != dst.Is4() || !has {
				continue
			}
			f := policy.Flow{Src: src, Dst: dst, Proto: protoOf(q.Proto, src), Port: q.Port,
				Quotes: quotes}
			t.Paths = append(t.Paths, Path{From: src, To: dst, Sides: []Side{
				j.side(policy.Egress, f, from, to),
				j.side(policy.Ingress, f, to, from),
			}})
		}
	}
	if len(t.Paths) == 0 {
		return nil, fmt.Errorf("%s and %s have no addresses of one family", q.From, q.To)
	}
	return t, nil
}

// ofFamily returns the first address that has the family of a. An invalid address counts as one of
// every family: it stands for a Question without About.
func ofFamily(addrs []netip.Addr, a netip.Addr) (found netip.Addr, has bool) {
	i := slices.IndexFunc(addrs, func(b netip.Addr) bool {
		return !b.IsValid() || b.Is4() == a.Is4()
	})
	if i < 0 {
		return found, false
	}
	return addrs[i], true
}

// ICMP protocol numbers (RFC 792, RFC 4443). A Question has the number of IPv4 in both families.
const icmp, icmp6 policy.Proto = 1, 58

func protoOf(p policy.Proto, a netip.Addr) policy.Proto {
	if p == icmp && a.Is6() {
		return icmp6
	}
	return p
}

// end is an end of a connection.
type end struct {
	text  string
	addrs []netip.Addr
	// pod is the pod's namespace/name, and the field on is the name of its node. Both are empty if
	// the end is not a pod.
	pod, on string
	// here reports whether the end is attached to this node, self whether it is this node.
	here, self bool
}

// end finds an end: a pod as NAMESPACE/NAME, or an address.
func (j Judge) end(text string) (end, error) {
	e := end{text: text}
	if namespace, name, isPod := strings.Cut(text, "/"); isPod {
		at, err := j.Planner.Find(policy.Name{Namespace: namespace, Name: name})
		switch {
		case err != nil:
			return e, err
		case at.HostNetwork:
			return e, fmt.Errorf("pod %s has the network of its node, so no policy applies to it: "+
				"write the node's address instead", text)
		case len(at.Addrs) == 0 && at.Node == j.Node:
			return e, fmt.Errorf("pod %s has no address: it is not attached to this node yet", text)
		case len(at.Addrs) == 0:
			return e, fmt.Errorf("pod %s has no address that its node %q owns", text, at.Node)
		}
		e.pod, e.on, e.addrs = text, at.Node, at.Addrs
		e.here = at.Node == j.Node && j.Planner.Attached(at.Addrs[0])
		return e, nil
	}

	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return e, fmt.Errorf("%q is not an address: write NAMESPACE/NAME or an address", text)
	}
	a = a.Unmap()
	e.addrs, e.here, e.self = []netip.Addr{a}, j.Planner.Attached(a), j.Own[a]
	if whose := j.Planner.Whose(a); len(whose) == 1 {
		e.pod, e.on = whose[0].Name.String(), whose[0].Node
	}
	return e, nil
}

// elsewhere returns a sentence that says where the ends are, and on which node to run the command.
func elsewhere(ends ...end) string {
	var words []string
	for _, e := range ends {
		if e.pod != "" {
			words = append(words, fmt.Sprintf("%s is on node %s", e.pod, e.on))
		} else {
			words = append(words, e.text+" is not a pod")
		}
	}
	return strings.Join(words, ", ") + ": run the command on the node of the pod"
}

// side judges one side.
func (j Judge) side(d policy.Direction, f policy.Flow, own, other end) Side {
	s := Side{Direction: d.String(), Pod: own.pod, Here: own.here}
	switch {
	case own.here:
	case own.on == j.Node:
		s.Why = own.pod + " is not attached to this node yet"
		return s
	case own.pod != "":
		s.Why = fmt.Sprintf("node %s decides it: run the command there", own.on)
		return s
	default:
		s.Why = own.text + " is not a pod, so no policy applies to it"
		return s
	}

	f.FromPod, f.ToPod = d == policy.Egress, d == policy.Ingress
	f.ToNode = d == policy.Egress && other.self
	if f.Quotes.IsValid() && d == policy.Ingress {
		f.FromPod = other.here
		f.FromTunnel = !other.here && j.Plan.IsInside(f.Src)
	}
	s.packet = interpret.Packet{Flow: f, FromNode: d == policy.Ingress && other.self}
	if s.packet.FromNode {
		s.Plan, s.Why = policy.Allow.String(), "processes of this node may always reach its pods"
		return s
	}
	verdict := j.Plan.Judge(f)
	s.Plan = verdict.String()
	if f.Quotes.IsValid() {
		s.Why = whyOf(verdict, s, f)
		return s
	}
	isolating, allowing := explain.Flow(j.Planner, j.Plan, d, f)
	s.Isolating, s.MoreIsolating = isolating.Some, isolating.More
	s.Allowing, s.MoreAllowing = allowing.Some, allowing.More
	s.Cluster, _ = explain.Decider(j.Planner, j.Plan, d, f)
	s.Why = whyOf(verdict, s, f)
	return s
}

// whyOf explains a verdict of the plan.
func whyOf(v policy.Verdict, s Side, f policy.Flow) string {
	const dns = 53
	switch {
	case v == policy.DenyRelated:
		return "an ICMP error passes only from the destination of the quoted packet, from a node " +
			"on the path, or from outside about a packet to the outside"
	case f.Quotes.IsValid():
		return "the ICMP error is related to the connection"

	case v == policy.DenyPending:
		return "the pod is mute, because veild does not know its policies yet"
	case v == policy.DenyEgress && f.Port == dns:
		return "no rule of these policies allows it; an isolated pod needs a rule for the " +
			"cluster's DNS"
	case v == policy.DenyUnknownPeer:
		return "the peer may be a pod that this node does not know yet, to which a rule may apply"
	case s.Cluster != "" && v == policy.Allow:
		return "a rule of ClusterNetworkPolicy " + s.Cluster + " accepts it"
	case s.Cluster != "":
		return "a rule of ClusterNetworkPolicy " + s.Cluster + " denies it"
	case v != policy.Allow:
		return "no rule of these policies allows it"
	case len(s.Isolating) == 0:
		return "no policy isolates the pod in this direction"
	case f.Src == f.Dst:
		return "a pod may always reach itself"
	case f.ToNode && len(s.Allowing) == 0:
		return "policyOwnNode allow: a pod may always reach its own node"
	}
	return ""
}

// AskKernel adds the verdicts of the kernel's table. It must run on a thread of the node's network
// namespace.
func (t *Trace) AskKernel() error {
	kernel, err := interpret.Open()
	if err != nil {
		return err
	}
	for p := range t.Paths {
		for i := range t.Paths[p].Sides {
			s := &t.Paths[p].Sides[i]
			if !s.Here {
				continue
			}
			got, err := kernel.Judge(s.packet)
			if err != nil {
				s.Kernel, s.Why = "unreadable", err.Error()
			} else {
				s.Kernel, s.Rule = got.Verdict.String(), got.Rule
			}
			s.Differs = s.Kernel != s.Plan
			t.Differs = t.Differs || s.Differs
		}
	}
	return kernel.Close()
}
