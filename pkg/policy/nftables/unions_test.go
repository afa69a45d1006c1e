package nftables_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// crowd is a pod of this node whose policy has many selectors that each select few pods, so that
// its rules look up unions. Pods come, go and change labels, and may be in several sets of a union.
type crowd struct {
	*policytest.World
	*planner.Planner
}

const crowdApps = 12

func newCrowd() crowd {
	w := policytest.NewWorld()
	c := crowd{w, w.NewPlanner()}
	attach(w, c.Planner, 1, map[string]string{"app": "server"})
	return c
}

func (c crowd) change(t *rapid.T) {
	i := rapid.IntRange(2, policytest.Pool).Draw(t, "pod")
	pod := policy.Pod{Name: policy.Name{Namespace: "a", Name: fmt.Sprint("peer-", i)}, UID: "peer",
		Node: "there", Addrs: policytest.PodAddrs(i), Labels: map[string]string{}}
	if port := rapid.SampledFrom([]uint16{80, 81}).Draw(t, "named"); port == 81 {
		pod.Ports = []policy.NamedPort{{Name: "web", Proto: policy.TCP, Port: port}}
	}
	for _, key := range []string{"app", "other"} {
		pod.Labels[key] = fmt.Sprint(rapid.IntRange(0, crowdApps).Draw(t, key))
	}
	switch rapid.IntRange(0, 5).Draw(t, "change") {
	case 0:
		delete(c.Pods, pod.Name)
		c.DeletePod(pod.Name)
	case 1:
		c.putPolicy(t)
	default:
		c.Pods[pod.Name] = pod
		c.PutPod(pod)
	}
}

// putPolicy puts a policy of two rules for each direction.
func (c crowd) putPolicy(t *rapid.T) {
	np := policy.Policy{Name: policy.Name{Namespace: "a", Name: "server"},
		Isolates: [2]bool{true, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}}}
	ports := []policy.Port{{Proto: policy.TCP, First: 80, Last: 80},
		{Proto: policy.TCP, First: 82, Last: 90}, {Proto: policy.TCP, Name: "web"}}
	for d := range np.Rules {
		for range 2 {
			r := policy.Rule{Ports: ports[:rapid.IntRange(1, len(ports)).Draw(t, "ports")]}
			for app := range crowdApps {
				for _, key := range []string{"app", "other"} {
					if rapid.IntRange(0, 3).Draw(t, "peer") > 0 {
						s := policy.Selector{{Key: key, Values: []string{fmt.Sprint(app)}}}
						r.Peers = append(r.Peers, policy.Peer{Pods: &s})
					}
				}
			}
			np.Rules[d] = append(np.Rules[d], r)
		}
	}
	c.Policies[np.Name] = np
	c.PutPolicy(np)
}

// flows returns all flows between the pod and others, on the ports of the policy and on one other
// port.
func (c crowd) flows() (out []policy.Flow) {
	for i := 2; i <= policytest.Pool; i++ {
		for f := range 2 {
			own, other := policytest.PodAddrs(1)[f], policytest.PodAddrs(i)[f]
			for _, port := range []uint16{79, 80, 81, 82, 90, 91} {
				f := policy.Flow{Src: other, Dst: own, ToPod: true, Proto: policy.TCP, Port: port}
				out = append(out, f)
				f.Src, f.Dst, f.ToPod, f.FromPod = own, other, false, true
				out = append(out, f)
			}
		}
	}
	return out
}

func TestUnionsJudgeAsTheirPeers(t *testing.T) {
	ns := nettest.NewNS(t)
	rapid.Check(t, func(t *rapid.T) {
		var kept, again nftables.PolicyTable
		defer kept.Close()
		defer again.Close()
		if rapid.Bool().Draw(t, "boxes") {
			kept.BoxAll()
			again.BoxAll()
		}
		c := newCrowd()
		c.putPolicy(t)
		flows := c.flows()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(1, 4).Draw(t, "changes") {
				c.change(t)
			}
			plan := c.Plan()
			if err := ns.Do(func() error { _, err := kept.Apply(plan); return err }); err != nil {
				t.Fatal(err)
			}
			got, err := judge(ns, flows...)
			if err != nil {
				t.Fatal(err)
			}
			for i, f := range flows {
				want := c.World.Judge(f)
				if got[i].Verdict != want || plan.Judge(f) != want {
					t.Fatalf("%+v: %s by %q, plan %s, want %s", f, got[i].Verdict, got[i].Rule,
						plan.Judge(f), want)
				}
			}
		}

		// A restarted daemon finds the table as it would write it.
		err := ns.Do(func() error {
			r, err := again.Apply(c.Plan())
			if r.Changes != 0 {
				t.Errorf("a restarted daemon made %d changes", r.Changes)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
