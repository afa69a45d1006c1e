package known

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// Seen returns the known connections of a namespace's pods on this node that policies allow, for
// package suggest. It must run on a thread of the node's network namespace.
func (j *Judge) Seen(namespace string) (*suggest.Seen, error) {
	v, done, err := j.look()
	if err != nil {
		return nil, err
	}
	defer done()

	p := v.Planner
	if !p.HasNamespace(namespace) {
		return nil, fmt.Errorf("namespace %s does not exist: the cluster has %s", namespace,
			planner.Some(p.Namespaces()))
	}

	plan := p.Plan()
	s := &seer{namespace: namespace, planner: p, attached: plan.Attached(),
		name: v.namer(plan), judge: plan.JudgesKnown(v.own),
		kept: map[policy.Name]suggest.Pods{}, others: map[string]others{}}
	err = v.each(func() { s.found = suggest.Collector{} }, s.add)
	if err != nil {
		return nil, err
	}
	seen := s.found.Result()
	seen.Node = v.Node
	return &seen, nil
}

// seer collects the connections of a namespace.
type seer struct {
	namespace string
	planner   *planner.Planner
	attached  map[netip.Addr]bool
	name      func(netip.Addr) trial.End
	judge     func(policy.Known) (policy.Verdict, policy.Flow, bool)
	kept      map[policy.Name]suggest.Pods
	// others holds the results of othersOf, by the key of Pods.
	others map[string]others
	found  suggest.Collector
}

// add adds a connection to each of its ends that is a pod of this node and of the namespace.
func (s *seer) add(c policy.Known) {
	v, f, ofPods := s.judge(c)
	if !ofPods {
		return
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		own, peer := f.Ends(d)
		subject, is := s.podsAt(own)
		if !s.attached[own] || !is || subject.Namespace != s.namespace {
			continue
		}
		switch {
		case v != policy.Allow:
			s.found.Denied++
		case f.Proto != policy.TCP && f.Proto != policy.UDP && f.Proto != policy.SCTP:
			s.found.Other++
		default:
			s.found.Add(suggest.Row{Subject: subject, Egress: d == policy.Egress, Peer: s.peer(peer),
				Protocol: strings.ToUpper(f.Proto.String()), Port: f.Port})
		}
	}
}

func (s *seer) peer(a netip.Addr) suggest.Peer {
	if pods, is := s.podsAt(a); is {
		return suggest.Peer{Pods: &pods}
	}
	e := s.name(a)
	node, _ := strings.CutPrefix(e.Name, "node ")
	if node == e.Name {
		node = ""
	}
	return suggest.Peer{Addr: a.String(), Node: node, Unknown: e.Unknown}
}

// podsAt returns the pods with the same stable labels as the pod that has an address. The second
// result is false if not exactly one pod, without the node's network, has the address.
func (s *seer) podsAt(a netip.Addr) (suggest.Pods, bool) {
	whose := s.planner.Whose(a)
	if len(whose) != 1 || whose[0].HostNetwork {
		return suggest.Pods{}, false
	}
	name := whose[0].Name
	if pods, has := s.kept[name]; has {
		return pods, true
	}

	pods := suggest.Pods{Namespace: name.Namespace, Example: name.Name,
		Labels: suggest.Stable(s.planner.Labels(name))}
	o := s.othersOf(pods)
	pods.Others, pods.Other = o.count, o.name
	s.kept[name] = pods
	return pods, true
}

// others counts the pods that labels select although their own stable labels differ. name is the
// first of their names.
type others struct {
	count int
	name  string
}

// othersOf walks through the pods of a namespace once per set of labels, not once per pod: a
// workload may have thousands of pods.
func (s *seer) othersOf(pods suggest.Pods) others {
	o, has := s.others[pods.Key()]
	if has {
		return o
	}
	for other, labels := range s.planner.Selected(pods.Namespace, pods.Labels) {
		if !maps.Equal(suggest.Stable(labels), pods.Labels) {
			if o.count++; o.name == "" || other < o.name {
				o.name = other
			}
		}
	}
	s.others[pods.Key()] = o
	return o
}
