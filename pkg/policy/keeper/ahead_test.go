package keeper

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// putEvil passes a pod of namespace evil to the Keeper.
func (n *node) putEvil(name string) {
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "evil", Name: name}, UID: "uid-" + name,
		Node: "here", Labels: map[string]string{"app": "evil"}})
}

// putLines makes policies of namespace evil with so many lines. None allows what the test's pods
// send.
func (n *node) putLines(lines int) {
	for _, np := range policytest.OwnPorts("evil", "evil", lines, false) {
		n.PutPolicy(np)
	}
}

// goOn runs a turn that a change or a slice caused, when another slice may be made.
func (n *node) goOn() {
	n.t.Helper()
	n.clock = n.clock.Add(nftables.SlicePause)
	n.goOnAtOnce()
}

// goOnAtOnce runs a turn that a change caused.
func (n *node) goOnAtOnce() {
	n.t.Helper()
	n.must(func() error { return n.Keeper.turn(loop.Reason{}) })
}

// newHeldNode returns a node with pods of namespace shop and evil, and a large change of evil that
// is held.
func newHeldNode(t *testing.T) *node {
	n := newLargeNode(t)
	n.goOn()
	if p := n.ProgressTo(n.Status().Told, ""); p.Enforced || len(p.Missing) != 1 ||
		!strings.Contains(p.Missing[0], "evil") {
		t.Fatalf("progress %+v", p)
	}
	return n
}

// newLargeNode returns a node with pods of namespace shop and evil, which has received a large
// change of evil.
func newLargeNode(t *testing.T) *node {
	n := newNode(t)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.putEvil("evil")
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	n.attachOf("evil", "evil", 3)
	n.AttachmentsChanged()
	n.step()
	n.putLines(compile.MaxChainLines)
	return n
}

// finish takes turns until all changes are in force.
func (n *node) finish() {
	n.t.Helper()
	for turns := 0; !n.ProgressTo(n.Status().Told, "").Enforced; turns++ {
		if turns == 100 {
			n.t.Fatalf("not in force after %d turns: %v", turns, n.Problems())
		}
		n.goOn()
	}
}

func TestPoliciesOfOthersDoNotWaitForALargeChange(t *testing.T) {
	n := newHeldNode(t)
	for range 2 {
		n.goOn() // A slice is made.
		n.PutPolicy(denyAll)
		n.goOn()
		n.wantTalk("client", 2, false)
		n.wantTalk("evil", 1, true)
		n.DeletePolicy(denyAll.Name)
		n.goOn()
		n.wantTalk("client", 2, true)
	}
	for _, v := range n.List().Policies {
		if strings.HasPrefix(v.Policy, "evil/") && v.Enforced {
			t.Errorf("%s counts as in force", v.Policy)
		}
	}
	n.finish()
	n.wantTalk("evil", 1, false)
}

// While a large change is held, pods come and go. A new pod whose group waits for the change is
// mute; the former policies may be older than it.
func TestPodsComeAndGoWhileALargeChangeIsHeld(t *testing.T) {
	n := newHeldNode(t)
	n.goOn()
	n.put("late", nil)
	n.putEvil("mute")
	n.goOn()
	gone := n.attach("late", 4)
	n.wantTalk("late", 1, true) // ADD found the reservation.
	n.attachOf("evil", "mute", 5)
	n.wantTalk("mute", 1, false)
	n.AttachmentsChanged()
	n.goOn()
	n.wantTalk("mute", 1, false)
	if s := n.Status(); s.Pending != 1 {
		t.Errorf("%d pods are mute, want 1", s.Pending)
	}

	n.must(func() error { return n.paths.Detach(gone.HostLink) })
	n.DeletePod(policy.Name{Namespace: "shop", Name: "late"})
	n.AttachmentsChanged()
	n.goOn()
	n.DeletePolicy(policytest.OwnPorts("evil", "evil", compile.MaxChainLines, false)[0].Name)
	n.finish()
	if s := n.Status(); s.Pending != 0 || s.Members != 4 {
		t.Errorf("status %+v", s)
	}
	n.wantTalk("mute", 1, false) // by the policies
	n.wantTalk("evil", 1, false)
}

func TestRestartAmidALargeChangeBringsItInForce(t *testing.T) {
	n := newHeldNode(t)
	n.goOn()
	n.restart()
	n.step() // Nothing is listed.
	n.wantTalk("client", 2, true)
	n.wantTalk("evil", 1, true)

	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.putEvil("evil")
	n.putLines(compile.MaxChainLines)
	n.PutPolicy(denyAll)
	n.listed()
	n.finish()
	n.wantTalk("client", 2, false)
	n.wantTalk("evil", 1, false)
}

func TestQueuedDraftsAreNotMadeAtTheEnd(t *testing.T) {
	n := newLargeNode(t)
	n.postpones = true
	n.goOn()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.must(func() error { return n.Keeper.Run(ctx) })
	nettest.Until(t, 10*time.Second, "the keeper ends", n.ending.Load)
	if len(n.postponed) == 0 {
		t.Fatal("no draft is queued")
	}
	n.postponed[0]()
	if n.adopted {
		t.Error("a draft was made after the end")
	}
}

// No timer wakes the loop after a slice that failed, so the next one must not wait for a pause.
func TestNoPauseFollowsASliceThatFailed(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	n := newHeldNode(t)
	for turns := 0; !n.canGoAhead(); turns++ {
		if turns == 5 {
			t.Fatal("no slice is to be made")
		}
		n.goOn()
	}
	n.Exec(t, nft, "delete", "table", "inet", abi.NFTPolicyTable)
	n.clock = n.clock.Add(nftables.SlicePause)
	err := n.Host.Do(func() error { return n.Keeper.turn(loop.Reason{}) })
	if err == nil || n.clock.Before(n.own.next) {
		t.Errorf("%v, and the next slice waits %v", err, n.own.next.Sub(n.clock))
	}
	n.finish()
	n.wantTalk("evil", 1, false)
}

// The comparison with the kernel each 30 s is not put off by slices.
func TestComparisonDoesNotWaitForALargeChange(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	n := newHeldNode(t)
	n.PutPolicy(denyAll)
	n.goOn()
	n.wantTalk("client", 2, false)
	n.Exec(t, nft, "flush", "chain", "inet", abi.NFTPolicyTable, "ingress")
	n.wantTalk("client", 2, true) // the control
	n.must(func() error { return n.Keeper.turn(loop.Reason{Resync: true}) })
	n.wantTalk("client", 2, false)
	n.finish()
	n.wantTalk("evil", 1, false)
}

// A large change is planned beside the loop. Meanwhile changes of other namespaces come in force,
// and new pods of its namespace are mute.
func TestPoliciesOfOthersDoNotWaitUntilALargeChangeIsPlanned(t *testing.T) {
	n := newLargeNode(t)
	n.postpones = true
	for range 2 {
		n.PutPolicy(denyAll)
		n.goOn()
		n.wantTalk("client", 2, false)
		n.DeletePolicy(denyAll.Name)
		n.goOn()
		n.wantTalk("client", 2, true)
	}
	n.wantTalk("evil", 1, true)
	n.putEvil("mute")
	n.attachOf("evil", "mute", 5)
	n.AttachmentsChanged()
	n.goOn()
	n.wantTalk("mute", 1, false)
	if s := n.Status(); s.Pending != 1 || s.Revision == s.Told || len(n.postponed) != 1 {
		t.Errorf("%d pods are mute, %d drafts, revision %s of %s", s.Pending, len(n.postponed),
			s.Revision, s.Told)
	}
	for _, v := range n.List().Policies {
		if strings.HasPrefix(v.Policy, "evil/") && v.Enforced {
			t.Errorf("%s counts as in force", v.Policy)
		}
	}

	n.postpones = false
	n.postponed[0]()
	n.finish()
	n.wantTalk("evil", 1, false)
	if s := n.Status(); s.Pending != 0 || s.Revision != s.Told {
		t.Errorf("%d pods are mute, revision %s of %s", s.Pending, s.Revision, s.Told)
	}
}

// Who waits for the policies of one namespace does not wait for large changes of others.
func TestProgressOfANamespaceLeavesOutOthers(t *testing.T) {
	n := newHeldNode(t)
	n.PutPolicy(denyAll)
	if p := n.ProgressTo(n.Status().Told, "shop"); p.Enforced {
		t.Errorf("before the step: %+v", p)
	}
	n.goOn()
	told := n.Status().Told
	listed := revisionsOf(denyAll)
	listed[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: "evil", Name: "late"}] =
		policy.Object{UID: "1", Generation: 1}
	for namespace, want := range map[string]bool{"shop": true, "evil": false, "": false} {
		if p := n.ProgressTo(told, namespace); p.Enforced != want {
			t.Errorf("revision, namespace %q: %+v", namespace, p)
		}
		if p := n.Progress(listed, namespace); p.Enforced != want {
			t.Errorf("list, namespace %q: %+v", namespace, p)
		}
	}
	n.finish()
	if p := n.ProgressTo(told, "evil"); !p.Enforced {
		t.Errorf("at the end: %+v", p)
	}
}

// Changes that come between slices do not shorten the pause, in which a DEL finds the table
// unchanged.
func TestSlicesKeepTheirPauseBesideChanges(t *testing.T) {
	n := newHeldNode(t)
	n.goOn()
	next := n.own.next
	for range 3 {
		n.PutPolicy(denyAll)
		n.goOnAtOnce()
		n.wantTalk("client", 2, false)
		n.DeletePolicy(denyAll.Name)
		n.goOnAtOnce()
		n.clock = n.clock.Add(time.Millisecond)
	}
	if n.own.next != next {
		t.Error("a slice was made in the pause of the one before")
	}
	n.goOn()
	if n.own.next == next {
		t.Error("no slice was made after the pause")
	}
	n.finish()
}

func TestHeldChangeIsTimedFromItsArrival(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var a ahead
	var got []time.Time
	for _, s := range []struct {
		changed time.Time
		held    bool
	}{{at(1), true}, {time.Time{}, true}, {at(2), true}, {time.Time{}, false}, {at(3), false}} {
		got = append(got, a.hold(s.changed, s.held))
	}
	want := []time.Time{at(1), {}, at(2), at(1), at(3)}
	if !slices.Equal(got, want) {
		t.Errorf("times %v, want %v", got, want)
	}
}
