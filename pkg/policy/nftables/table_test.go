package nftables_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// local are the numbers of the pods of the node in most tests.
var local = []int{1, 2, 3}

// attach attaches pod i of a world to this node, so that its link has its addresses.
func attach(w *policytest.World, p *planner.Planner, i int, labels map[string]string) policy.Key {
	name := policy.Name{Namespace: "a", Name: fmt.Sprint("local-", i)}
	key := policy.Key{Name: name, UID: fmt.Sprint("uid-", i)}
	pod := policy.Pod{Name: name, UID: key.UID, Node: w.Node, Labels: labels,
		Ports: []policy.NamedPort{{Name: "web", Proto: policy.TCP, Port: 80},
			{Name: "dns", Proto: policy.UDP, Port: 53}}}
	w.Pods[name] = pod
	w.Attached[key] = policytest.PodAddrs(i)
	p.PutPod(pod)
	p.SetAttached(key, policytest.PodAddrs(i))
	return key
}

// For random clusters, the kernel judges real packets as the interpreter judges their flows.
func TestKernelJudgesAsTheInterpreter(t *testing.T) {
	l := newLab(t, local...)
	t.Run("rules", func(t *testing.T) { checkJudgement(t, l) })
	l.table.Close()
	l.table = nftables.PolicyTable{}
	l.table.BoxAll()
	t.Run("boxes", func(t *testing.T) { checkJudgement(t, l) })
}

func checkJudgement(t *testing.T, l *lab) {
	flows := l.flows()
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for _, i := range local {
			attach(w, p, i, policytest.DrawLabels(t))
		}

		for range rapid.IntRange(5, 30).Draw(t, "changes") {
			w.Change(t, p)
		}

		// Attachments of the world without a link in the lab do not belong to this node.
		for key, addrs := range w.Attached {
			if _, here := l.at(addrs[0]); !here || !strings.HasPrefix(key.Name.Name, "local-") {
				p.SetAttached(key, nil)
				delete(w.Attached, key)
			}
		}

		plan := p.Plan()
		l.apply(plan)
		from := rapid.IntRange(0, 4).Draw(t, "from")

		var some []policy.Flow
		for i := from; i < len(flows); i += 5 {
			some = append(some, flows[i])
		}

		allowed := func(f policy.Flow) bool { return plan.Judge(f) == policy.Allow }
		for i, arrived := range l.send(some, allowed) {
			want := plan.Judge(some[i])
			if arrived != (want == policy.Allow) {
				t.Fatalf("%+v: arrived %t, want %s", some[i], arrived, want)
			}
			if oracle := w.Judge(some[i]); oracle != want {
				t.Fatalf("%+v: the oracle says %s, the interpreter %s", some[i], oracle, want)
			}
		}

		if again := l.apply(plan); again != 0 {
			t.Fatalf("applying the same plan again made %d changes", again)
		}
	})
}

// two returns a lab of three pods of this node. The pod "server" accepts TCP 80 from "client" only.
func two(t *testing.T) (*lab, *planner.Planner) {
	l := newLab(t, local...)
	w := policytest.NewWorld()
	p := planner.New(w.Node)
	attach(w, p, 1, map[string]string{"app": "server"})
	attach(w, p, 2, map[string]string{"app": "client"})
	attach(w, p, 3, nil)
	p.PutPolicy(serverPolicy())
	return l, p
}

func serverPolicy() policy.Policy {
	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	return policy.Policy{Name: policy.Name{Namespace: "a", Name: "server"}, Isolates: [2]bool{true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}},
		Rules: [2][]policy.Rule{{{Peers: []policy.Peer{{Pods: &client}},
			Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 80}}}}}}
}

// to returns the flow from pod i to pod 1 in both families.
func to(l *lab, i int, port uint16) (out []policy.Flow) {
	for f := range 2 {
		flow := policy.Flow{Src: policytest.PodAddrs(i)[f], Dst: policytest.PodAddrs(1)[f],
			ToPod: true,
			Proto: policy.TCP, Port: port}
		_, flow.FromPod = l.at(flow.Src)
		out = append(out, flow)
	}
	return out
}

func (l *lab) arrive(flows []policy.Flow, want bool) {
	l.t.Helper()
	for i, arrived := range l.send(flows, func(policy.Flow) bool { return want }) {
		if arrived != want {
			l.t.Errorf("%+v: arrived %t, want %t", flows[i], arrived, want)
		}
	}
}

func TestAllowedPacketsArriveAndOthersDoNot(t *testing.T) {
	l, p := two(t)
	l.arrive(to(l, 3, 80), true) // without a table: the control
	l.apply(p.Plan())
	l.arrive(to(l, 2, 80), true)
	l.arrive(to(l, 2, 81), false)
	l.arrive(to(l, 3, 80), false)
	l.arrive(to(l, 5, 80), false) // a pod of another node that nothing is known of

	l.node.Run(t, func() error {
		drops, err := nftables.Drops()
		// Packets that the pods' kernels send from link-local addresses belong to no group.
		if drops["policy_ingress"] != 6 || drops["policy_egress"] != 0 {
			t.Errorf("counted %v", drops)
		}
		return err
	})
}

func TestNodeReachesItsIsolatedPods(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	for _, a := range policytest.PodAddrs(1) {
		if err := dial(l.node, a, true); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("the node's own connection to %s: %v, want it refused by the pod", a, err)
		}
	}
}

func TestAnswersOfAllowedConnectionsPass(t *testing.T) {
	l, p := two(t)
	// The client may send to the server only, and receives from no pod.
	server := policy.Selector{{Key: "app", Values: []string{"server"}}}
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "client"},
		Isolates: [2]bool{true, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}},
		Rules:    [2][]policy.Rule{nil, {{Peers: []policy.Peer{{Pods: &server}}}}}})
	l.apply(p.Plan())
	for _, a := range policytest.PodAddrs(1) {
		// The reset is the answer of a closed port.
		if err := dialPort(l.pods[2], a, 80, true); err == nil ||
			!strings.Contains(err.Error(), "refused") {
			t.Errorf("connection to %s: %v, want it refused by the server", a, err)
		}
		if err := dialPort(l.pods[2], a, 81, false); err == nil ||
			strings.Contains(err.Error(), "refused") {
			t.Errorf("connection to another port of %s: %v, want silence", a, err)
		}
		answer, err := udp(l.pods[2], a, false)
		if !strings.Contains(fmt.Sprint(err), "deadline") &&
			!strings.Contains(fmt.Sprint(err), "timeout") {
			t.Errorf("datagram to %s: %q, %v, want silence", a, answer, err)
		}
	}
}

// An ICMP error belongs to the connection that it is about.
func TestErrorsAboutAllowedConnectionsPass(t *testing.T) {
	l, p := two(t)
	np := serverPolicy()
	np.Rules[0][0].Ports = nil // of all protocols
	p.PutPolicy(np)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "client"},
		Isolates: [2]bool{true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}}})
	l.apply(p.Plan())
	for _, a := range policytest.PodAddrs(1) {
		if _, err := udp(l.pods[2], a, true); !strings.Contains(fmt.Sprint(err), "refused") {
			t.Errorf("datagram to a closed port of %s: %v, want port unreachable", a, err)
		}
	}
}

func TestEgressToTheNodeItselfIsJudged(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	gateway := netip.MustParseAddr("169.254.1.1")
	err := dial(l.pods[2], gateway, true)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("pod to its node: %v, want it refused by the node", err)
	}
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "all"},
		Isolates: [2]bool{false, true}})
	l.apply(p.Plan())
	err = dial(l.pods[2], gateway, false)
	if err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("isolated pod to its node: %v, want silence", err)
	}
}

func TestPodWithoutAGroupIsMute(t *testing.T) {
	l, p := two(t)
	key := policy.Key{Name: policy.Name{Namespace: "a", Name: "local-3"}, UID: "uid-3"}
	p.SetAttached(key, nil)
	l.apply(p.Plan())
	var both []policy.Flow
	for _, f := range to(l, 3, 80) {
		both = append(both, f, policy.Flow{Src: policytest.PodAddrs(2)[0],
			Dst:     policytest.PodAddrs(3)[0],
			FromPod: true, ToPod: true, Proto: policy.UDP, Port: 53})
	}
	l.arrive(both, false)
	for _, a := range policytest.PodAddrs(3) {
		if err := dial(l.node, a, true); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("probe of a pod that is pending: %v, want it refused by the pod", err)
		}
	}
}

func TestRestartAdoptsAndWritesNothing(t *testing.T) {
	l, p := two(t)
	plan := p.Plan()
	if l.apply(plan) == 0 {
		t.Fatal("the first plan took no change")
	}
	before := l.list()
	l.table.Close()
	l.table = nftables.PolicyTable{}
	if n := l.apply(plan); n != 0 {
		t.Errorf("a restarted daemon made %d changes", n)
	}
	if after := l.list(); after != before {
		t.Errorf("the table changed from\n%s\nto\n%s", before, after)
	}
}

// list returns the output of nft, which also shows that nft can print the table. It leaves out
// counts, because a host sends neighbour discovery at any moment.
func (l *lab) list() (text string) {
	nft := nettest.NeedProgram(l.t, "nft")
	text = l.output(nft, "list table inet "+abi.NFTPolicyTable) +
		l.output(nft, "list table inet "+abi.NFTStampTable)
	lines := slices.DeleteFunc(strings.Split(text, "\n"),
		func(l string) bool { return strings.Contains(l, "packets") })
	return strings.Join(lines, "\n")
}

// A group that is added or removed does not change the rules of other groups, because the kernel
// searches all sets for each written rule.
func TestGroupsThatStayKeepTheirRules(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	handles := func() (all []string) {
		text := l.output(nft, "-a list chain inet "+abi.NFTPolicyTable+" egress")
		for _, line := range strings.Split(text, "\n") {
			if rule, handle, has := strings.Cut(line, " # handle "); has && !strings.Contains(rule, "chain") {
				all = append(all, handle)
			}
		}
		return all
	}

	l.apply(p.Plan())
	before := handles()
	w := policytest.NewWorld()
	for i := range 5 {
		app := fmt.Sprint("more-", i)
		attach(w, p, 10+i, map[string]string{"app": app})
		more := serverPolicy()
		more.Name.Name = app
		more.Subjects = policy.Selector{{Key: "app", Values: []string{app}}}
		more.Rules[policy.Ingress][0].Ports[0] = policy.Port{Proto: policy.UDP,
			First: uint16(100 + i), Last: uint16(100 + i)}
		p.PutPolicy(more)
	}

	l.apply(p.Plan())
	grown := handles()
	if missing := slices.DeleteFunc(slices.Clone(before),
		func(h string) bool { return slices.Contains(grown, h) }); len(missing) > 0 {
		t.Errorf("rules %v were written again; %v became %v", missing, before, grown)
	}
	if len(grown) <= len(before) {
		t.Fatalf("%d rules became %d", len(before), len(grown))
	}

	var fresh nftables.PolicyTable
	defer fresh.Close()
	l.node.Run(t, func() error {
		r, err := fresh.Apply(p.Plan())
		if r.Changes != 0 {
			t.Errorf("the next daemon made %d changes", r.Changes)
		}
		return err
	})
}

func TestTableThatWasChangedByHandIsRestored(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	for name, command := range map[string]string{
		"deleted":      "delete table inet kubeveil_policy",
		"flushed":      "flush ruleset",
		"rules gone":   "flush chain inet kubeveil_policy ingress",
		"members gone": "flush set inet kubeveil_policy self4",
		"hook moved":   "delete chain inet kubeveil_policy post",
		"chain added":  "add chain inet kubeveil_policy mine",
		"other table":  "add table inet mine",
		"dormant":      "add table inet kubeveil_policy { flags dormant; }",
		"stamp asleep": "add table inet kubeveil_stamp { flags dormant; }",
		"stamp gone":   "delete table inet kubeveil_stamp",
		"no check":     "flush chain inet kubeveil_stamp check_post",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It waits for the kernel most of the time.
			l, p := two(t)
			l.apply(p.Plan())
			want := l.list()
			l.run(l.node, nft, command)
			l.table.Forget()
			l.apply(p.Plan())
			if got := l.list(); sorted(got) != sorted(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			l.arrive(to(l, 3, 80), false)
			l.arrive(to(l, 2, 80), true)
		})
	}
}

// sorted makes texts comparable whose chains and sets are in different orders.
func sorted(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A plugin adds and removes members beside the daemon.
func TestMembersThatPluginsWroteAreKeptOrRemoved(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	plan := p.Plan()
	l.apply(plan)
	key := policy.Key{Name: policy.Name{Namespace: "a", Name: "local-1"}, UID: "uid-1"}
	set := "m4_" + plan.Members[key].Group
	l.run(l.node, nft, fmt.Sprintf("add element inet kubeveil_policy %s { 198.18.0.3 }", set))
	l.run(l.node, nft, fmt.Sprintf("delete element inet kubeveil_policy %s { 198.18.0.1 }", set))
	l.node.Run(t, l.table.Refresh)
	if n := l.apply(p.Plan()); n != 2 {
		t.Errorf("%d changes, want the missing member and the foreign one", n)
	}

	// The daemon does not know yet that a plugin removed the element. The kernel refuses the
	// daemon's own removal, and the daemon tries again.
	l.run(l.node, nft, fmt.Sprintf("delete element inet kubeveil_policy %s { 198.18.0.1 }", set))
	p.SetAttached(key, nil)
	l.apply(p.Plan())
	l.arrive(to(l, 2, 80), false)
}

func TestRefusedTransactionLeavesTheOldState(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	// A set with the same name has another type.
	nft := nettest.NeedProgram(t, "nft")
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "server"},
		Isolates: [2]bool{true}})
	next := p.Plan()
	for name := range next.Groups {
		l.run(l.node, nft, "add chain inet kubeveil_policy m4_"+name) // harmless
		l.run(l.node, nft, "add set inet kubeveil_policy m4_"+name+" { type inet_service; }")
	}
	l.node.Run(t, func() error {
		if _, err := l.table.Apply(next); err == nil {
			t.Error("a plan was applied over a set of another type")
		}
		return nil
	})
	l.arrive(to(l, 2, 80), true)
	l.arrive(to(l, 3, 80), false)
}

// A pod that moves between groups is in exactly one at each moment.
func TestChangeIsAtomic(t *testing.T) {
	l, p := two(t)
	open := serverPolicy()
	open.Subjects = policy.Selector{{Key: "app", Values: []string{"nobody"}}}
	stop := make(chan struct{})
	done := make(chan error, 1)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "deny"},
		Isolates: [2]bool{true}})
	l.apply(p.Plan())
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			np := serverPolicy()
			np.Rules[0][0].Ports[0].Last = uint16(80 + i%7)
			p.PutPolicy(np)
			if err := l.node.Do(func() error {
				_, err := l.table.Apply(p.Plan())
				return err
			}); err != nil {
				done <- err
				return
			}
		}
	}()

	for range 20 {
		l.arrive(to(l, 2, 80), true)
		l.arrive(to(l, 3, 80), false)
		l.arrive(to(l, 2, 79), false)
	}

	close(stop)
	errtest.Must(t, <-done)
}

// The kernel's cost depends on the number of rules. So the ports of one peer are one rule per
// family, and chains with the same ports share their set.
func TestPortsOfOnePeerAreOneRule(t *testing.T) {
	l, p := two(t)
	ports := []policy.Port{{Proto: policy.TCP, First: 2000, Last: 3000}}
	for _, n := range []uint16{1, 53, 80, 8080} {
		ports = append(ports, policy.Port{Proto: policy.TCP, First: n, Last: n})
	}
	for _, name := range []string{"server", "client"} {
		np := serverPolicy()
		np.Name.Name, np.Subjects[0].Values = name, []string{name}
		if np.Rules[0][0].Ports = ports; name == "client" { // another chain
			np.Rules[0] = append(np.Rules[0], policy.Rule{Peers: []policy.Peer{{}}, Ports: ports[:1]})
		}
		p.PutPolicy(np)
	}

	l.apply(p.Plan())
	text := l.list()
	// Each rule appears twice, as itself and as its comment. A range is "th" only in the comment.
	for part, want := range map[string]int{"th dport @t": 8, "th dport 2000-3000": 6, "set t": 1,
		"dport 80 ": 0} {
		if got := strings.Count(text, part); got != want {
			t.Errorf("%d times %q, want %d:\n%s", got, part, want, text)
		}
	}
	l.arrive(to(l, 2, 80), true)
	l.arrive(to(l, 2, 2500), true)
	l.arrive(to(l, 2, 81), false)
	l.arrive(to(l, 3, 80), false)
}

func BenchmarkApplyAfterRelabelling(b *testing.B) {
	for _, rules := range []int{1000, 10000} {
		b.Run(fmt.Sprint(rules, " rules"), func(b *testing.B) {
			ns := nettest.NewNS(b)
			w := policytest.NewWorld()
			p := planner.New(w.Node)
			attach(w, p, 1, nil)
			np := policy.Policy{Name: policy.Name{Namespace: "a", Name: "many"},
				Isolates: [2]bool{true}}

			for i := range rules / 2 {
				s := policy.Selector{{Key: "app", Values: []string{fmt.Sprint(i % 50)}}}
				np.Rules[0] = append(np.Rules[0], policy.Rule{Peers: []policy.Peer{{Pods: &s}},
					Ports: []policy.Port{{Proto: policy.TCP, First: uint16(i + 1),
						Last: uint16(i + 1)}}})
			}

			np.Rules[0] = np.Rules[0][:min(len(np.Rules[0]), compile.MaxLines)]
			p.PutPolicy(np)
			var t nftables.PolicyTable
			b.Cleanup(func() { t.Close() })
			ns.Run(b, func() error {
				if _, err := t.Apply(p.Plan()); err != nil {
					return err
				}
				b.ResetTimer()
				for i := range b.N {
					p.PutPod(policy.Pod{Name: policy.Name{Namespace: "a", Name: "peer"},
						Node:   "there",
						Labels: map[string]string{"app": fmt.Sprint(i % 50)},
						Addrs:  []netip.Addr{netip.MustParseAddr("198.18.1.1")}})
					if _, err := t.Apply(p.Plan()); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
