package policy_test

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

var client, server = netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2")

// put adds a pod of this node in namespace a, with an app of its name and maybe an address.
func put(p *planner.Planner, name string, addrs ...netip.Addr) policy.Key {
	pod := policy.Pod{Name: policy.Name{Namespace: "a", Name: name}, UID: name, Node: "here",
		Labels: map[string]string{"app": name}}
	p.PutPod(pod)
	p.SetAttached(pod.Key(), addrs)
	return pod.Key()
}

// allow returns a policy that allows ingress of the server from one app only.
func allow(app string) policy.Policy {
	return policy.Policy{Name: policy.Name{Namespace: "a", Name: "allow"}, Isolates: [2]bool{true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}},
		Rules: [2][]policy.Rule{{{Peers: []policy.Peer{{Pods: &policy.Selector{
			{Key: "app", Values: []string{app}}}}}}}}}
}

func judge(p *policy.Plan, from, to netip.Addr) policy.Verdict {
	return p.Judge(policy.Flow{Src: from, Dst: to, FromPod: true, ToPod: true, Proto: policy.TCP,
		Port: 80})
}

func TestHeldPodKeepsItsGroupAndSets(t *testing.T) {
	p := planner.New("here")
	put(p, "client", client)
	held := map[policy.Key]*policy.Plan{put(p, "server", server): nil}
	p.PutPolicy(allow("client"))
	last := p.Plan()
	for key := range held {
		held[key] = last
	}

	p.PutPolicy(allow("another"))
	late := netip.MustParseAddr("198.18.1.3")
	put(p, "another", late)
	next := p.Plan()
	if next.Holding(nil) != next {
		t.Error("without held pods, the part is not the plan")
	}
	part := next.Holding(held)
	if got := judge(part, client, server); got != policy.Allow {
		t.Errorf("the former policy: %v", got)
	}
	if got := judge(part, late, server); got != policy.DenyIngress {
		t.Errorf("the new policy: %v", got)
	}
	if got := judge(part, late, client); got != policy.Allow {
		t.Errorf("a pod that is not held: %v", got)
	}
	for name := range next.Sets.All() {
		if part.Sets.Get(name) != next.Sets.Get(name) {
			t.Errorf("set %s is not the set of the plan", name)
		}
	}
	if judge(next, client, server) != policy.DenyIngress || part.Revision != "" {
		t.Error("the plan was changed, or the part has a revision")
	}
}

// A pod may be newer than the former policies. So it gets no group by them, not even one that was
// planned before it was attached.
func TestHeldPodIsMuteUnlessItWasAttached(t *testing.T) {
	for name, known := range map[string]bool{"planned": true, "new": false} {
		t.Run(name, func(t *testing.T) {
			p := planner.New("here")
			put(p, "client", client)
			p.PutPolicy(allow("client"))
			if known {
				put(p, "server")
			}
			last := p.Plan()
			key := put(p, "server", server)
			p.PutPolicy(allow("another"))

			part := p.Plan().Holding(map[policy.Key]*policy.Plan{key: last})
			if part.Members[key] != nil || judge(part, client, server) != policy.DenyPending {
				t.Errorf("member %+v", part.Members[key])
			}
		})
	}
}

func TestHeldPodFollowsItsAddresses(t *testing.T) {
	p := planner.New("here")
	put(p, "client", client)
	key := put(p, "server", server)
	p.PutPolicy(allow("client"))
	held := map[policy.Key]*policy.Plan{key: p.Plan()}
	p.PutPolicy(allow("another"))
	if m := p.Plan().Holding(held).Members[key]; m != held[key].Members[key] {
		t.Error("a member that did not change is not the same")
	}

	moved := netip.MustParseAddr("198.18.1.9")
	p.SetAttached(key, []netip.Addr{moved})
	part := p.Plan().Holding(held)
	if judge(part, client, moved) != policy.Allow ||
		judge(part, client, server) != policy.DenyPending {
		t.Errorf("member %+v", part.Members[key])
	}
}
