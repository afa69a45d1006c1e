package nftables_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// parts brings plans of a planner in force, part by part. Pod 1 is in namespace shop, pod 2 in
// namespace evil.
type parts struct {
	*planner.Planner
	t    *testing.T
	ns   *nettest.NS
	kept nftables.PolicyTable
}

func newParts(t *testing.T) *parts {
	s := &parts{Planner: planner.New("here"), t: t, ns: nettest.NewNS(t)}
	t.Cleanup(func() { _ = s.kept.Close() })
	s.attach("shop", 1)
	s.attach("evil", 2)
	if !s.apply() {
		t.Fatal("the first plan is not in force whole")
	}
	return s
}

func (s *parts) attach(namespace string, i int) {
	pod := policy.Pod{Name: policy.Name{Namespace: namespace, Name: fmt.Sprint("pod-", i)},
		UID: fmt.Sprint(i), Node: "here", Labels: map[string]string{"app": namespace}}
	s.PutPod(pod)
	s.SetAttached(pod.Key(), policytest.PodAddrs(i))
}

// putLines makes policies of a namespace with so many lines of egress. Another number of lines
// needs other sets.
func (s *parts) putLines(namespace string, lines int) {
	for _, np := range policytest.OwnPorts(namespace, namespace, lines, false) {
		s.PutPolicy(np)
	}
}

// apply brings a part of the planner's plan in force, and reports whether it is the whole plan.
func (s *parts) apply() (whole bool) {
	s.t.Helper()
	plan := s.Plan()
	part := s.kept.Part(plan)
	s.ns.Run(s.t, func() error { _, err := s.kept.Apply(part); return err })
	return part == plan
}

// slice makes a slice ahead, and then brings a part in force, although no other part may be ready.
func (s *parts) slice() (whole bool) {
	s.t.Helper()
	s.ns.Run(s.t, func() error { _, err := s.kept.Ahead(); return err })
	return s.apply()
}

// finish makes slices until the whole plan is in force, and returns their number. Then the kernel
// has exactly what the next daemon wants.
func (s *parts) finish() (slices int) {
	s.t.Helper()
	for !s.apply() {
		if slices++; slices > 100 {
			s.t.Fatal("the plan is not in force after 100 slices")
		}
		s.ns.Run(s.t, func() (err error) {
			for more := false; !more && err == nil; slices++ {
				more, err = s.kept.Ahead()
			}
			return err
		})
	}
	var next nftables.PolicyTable
	defer next.Close()
	s.ns.Run(s.t, func() error {
		r, err := next.Apply(s.Plan())
		if r.Changes != 0 {
			s.t.Errorf("the next daemon made %d changes", r.Changes)
		}
		return err
	})
	return slices
}

// allows reports whether pod i may send to a line of policytest.OwnPorts. Line -1 stands for an
// address that no line allows.
func (s *parts) allows(i, line int) bool {
	s.t.Helper()
	f := policy.Flow{Src: policytest.PodAddrs(i)[0], Dst: policytest.Outside[0], FromPod: true,
		Proto: policy.UDP, Port: uint16(1 + line)}
	if line >= 0 {
		f.Dst = policytest.OwnPortsPeer(line, false).Addr()
	}
	got, err := judge(s.ns, f)
	if err != nil {
		s.t.Fatal(err)
	}
	return got[0].Verdict == policy.Allow
}

func (s *parts) want(when string, i, line int, want bool) {
	s.t.Helper()
	if got := s.allows(i, line); got != want {
		s.t.Errorf("%s: pod %d, line %d: allowed %t, want %t", when, i, line, got, want)
	}
}

// closed is a policy of namespace shop that denies what pod 1 sends.
var closed = policy.Policy{Name: policy.Name{Namespace: "shop", Name: "closed"},
	Isolates: [2]bool{false, true}}

func TestSmallChangesDoNotWaitForALargeOne(t *testing.T) {
	s := newParts(t)
	s.putLines("evil", compile.MaxChainLines)
	if s.apply() {
		t.Fatal("the large change is in force at once: the test shows nothing")
	}
	for i := range 3 {
		s.PutPolicy(closed)
		if s.slice() {
			t.Fatal("the large change is in force too early")
		}
		s.want(fmt.Sprint("slice ", i), 1, -1, false)
		s.want(fmt.Sprint("slice ", i), 2, -1, true)
		s.DeletePolicy(closed.Name)
		s.apply()
		s.want(fmt.Sprint("slice ", i, ", then"), 1, -1, true)
	}

	if n := s.finish(); n < 4 {
		t.Errorf("the rest took %d slices", n)
	}
	s.want("in force", 2, -1, false)
	s.want("in force", 2, compile.MaxChainLines-1, true)
}

// A namespace whose large policies change with each slice has one of its changes in force after the
// slices of one change, and a later one after the slices of another.
func TestLargeChangesThatRepeatComeInForce(t *testing.T) {
	const most = 3 + compile.MaxChainLines/2048
	s := newParts(t)
	lines := compile.MaxChainLines
	until := func(denied int) {
		t.Helper()
		for i := 0; s.allows(2, denied); i++ {
			if i == most {
				t.Fatalf("none of %d large changes is in force", i)
			}
			lines--
			s.putLines("evil", lines)
			s.slice()
		}
	}
	s.putLines("evil", lines)
	s.apply()
	until(-1)
	s.want("the first change", 2, compile.MaxChainLines-1, true)
	until(compile.MaxChainLines - 1)
	s.finish()
	s.want("the last change", 2, lines-1, true)
	s.want("the last change", 2, lines, false)
}

func TestNamespacesWithLargeChangesTakeTurns(t *testing.T) {
	s := newParts(t)
	s.putLines("evil", compile.MaxChainLines)
	s.apply()
	s.slice()
	s.putLines("shop", 3000) // two slices
	s.apply()
	for range 4 {
		s.slice()
	}
	s.want("after two turns each", 1, -1, false)
	s.want("after two turns each", 1, 2999, true)
	s.want("after two turns each", 2, -1, true)
	s.finish()
}

// While a change is held, a new pod of its namespace is mute: it may be newer than the change.
func TestNewPodWaitsForTheLargeChange(t *testing.T) {
	s := newParts(t)
	s.putLines("evil", compile.MaxChainLines)
	s.apply()
	s.attach("evil", 3)
	s.slice()
	s.want("held", 2, -1, true)
	s.want("held", 3, -1, false)
	s.want("held", 3, 0, false)
	s.putLines("evil", compile.MaxChainLines-1)
	s.finish()
	s.want("in force", 3, -1, false)
	s.want("in force", 3, 0, true)
}

func TestLargeChangeThatIsTakenBackLeavesNothing(t *testing.T) {
	s := newParts(t)
	s.putLines("evil", compile.MaxChainLines)
	s.apply()
	s.slice()
	for _, np := range policytest.OwnPorts("evil", "evil", compile.MaxChainLines, false) {
		s.DeletePolicy(np.Name)
	}
	if n := s.finish(); n != 0 {
		t.Errorf("%d slices followed", n)
	}
	s.want("taken back", 2, -1, true)
}

// A daemon that dies amid slices, or that the kernel refuses a slice, leaves sets in part. They are
// completed.
func TestLargeChangeGoesOnAfterAFailure(t *testing.T) {
	for name, again := range map[string]bool{"restart": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			s := newParts(t)
			s.putLines("evil", compile.MaxChainLines)
			s.apply()
			s.slice()
			if again {
				s.kept.Close()
				s.kept = nftables.PolicyTable{}
			} else {
				refused := errors.New("refused")
				s.kept.AfterSlice(func() error { return refused })
				s.ns.Run(t, func() error {
					if more, err := s.kept.Ahead(); more || !errors.Is(err, refused) {
						t.Errorf("%t, %v", more, err)
					}
					return nil
				})
				s.kept.AfterSlice(nil)
			}
			s.finish()
			s.want("in force", 2, -1, false)
			s.want("in force", 2, compile.MaxChainLines-1, true)
		})
	}
}

// Pods come and go while a set that has them is made.
func TestSetsThatChangeWhileTheyAreMade(t *testing.T) {
	const peers = 3000
	s := newParts(t)
	put := func(i int) netip.Addr {
		a := netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		s.PutPod(policy.Pod{Name: policy.Name{Namespace: "evil", Name: fmt.Sprint("peer-", i)},
			UID: fmt.Sprint("peer-", i), Node: "there", Labels: map[string]string{"app": "peer"},
			Addrs: []netip.Addr{a}})
		return a
	}
	for i := range peers {
		put(i)
	}
	s.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "evil", Name: "many"},
		Isolates: [2]bool{false, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"evil"}}},
		Rules: [2][]policy.Rule{policy.Egress: {{Peers: []policy.Peer{{Pods: &policy.Selector{
			{Key: "app", Values: []string{"peer"}}}}}}}}})
	if s.apply() {
		t.Fatal("the large change is in force at once: the test shows nothing")
	}

	s.slice()
	late := put(peers)
	s.DeletePod(policy.Name{Namespace: "evil", Name: "peer-7"})
	s.finish()
	flow := policy.Flow{Src: policytest.PodAddrs(2)[0], Dst: late, FromPod: true}
	gone := flow
	gone.Dst = netip.MustParseAddr("198.19.0.7")
	got, err := judge(s.ns, flow, gone)
	if err != nil || got[0].Verdict != policy.Allow || got[1].Verdict != policy.DenyEgress {
		t.Errorf("%v, %v", got, err)
	}
}
