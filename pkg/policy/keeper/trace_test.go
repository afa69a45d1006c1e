package keeper

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/trace"
)

const icmp policy.Proto = 1

// traced returns a node with a server that accepts TCP 80 from app=client only, a client on another
// node, and a pod that no policy selects.
func traced(t *testing.T) *node {
	n := newNode(t)
	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	n.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "web"},
		Isolates: [2]bool{true, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}},
		Rules: [2][]policy.Rule{{{Peers: []policy.Peer{{Pods: &client}},
			Ports: []policy.Port{{Proto: policy.TCP, First: 80, Last: 80}}}}}})
	n.put("server", map[string]string{"app": "server"})
	n.put("open", nil)
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "client"}, UID: "far",
		Node: "there", Labels: map[string]string{"app": "client"},
		Addrs: []netip.Addr{netip.MustParseAddr("198.18.2.9")}})
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "far"}, UID: "far2",
		Node: "there", Addrs: []netip.Addr{netip.MustParseAddr("198.18.2.10")}})
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "host"}, UID: "host",
		Node: "here", HostNetwork: true})
	n.attach("server", 1)
	n.attach("open", 2)
	n.listed()
	return n
}

// ask returns the Trace of a TCP connection to a port.
func (n *node) ask(from, to string, port uint16) (t *trace.Trace, err error) {
	n.t.Helper()
	n.must(func() error {
		t, err = n.Trace(n.t.Context(), trace.Question{From: from, To: to, Proto: policy.TCP,
			Port: port})
		return nil
	})
	return t, err
}

// Only the ends of a connection, and nodes on its path, may send an ICMP error about it.
func TestTraceKnowsErrors(t *testing.T) {
	n := traced(t)
	n.SetNodeAddrs(map[string][]netip.Addr{"there": {netip.MustParseAddr("192.0.2.2")}})
	n.step()
	for _, c := range []struct{ from, to, about, egress, ingress string }{
		{"shop/server", "shop/open", "shop/server", "allow", "allow"},
		{"shop/server", "shop/open", "shop/far", "policy_related", "policy_related"},
		{"shop/far", "shop/open", "shop/far", "", "allow"},
		{"shop/far", "shop/open", "shop/client", "", "policy_related"},
		{"192.0.2.2", "shop/open", "shop/client", "", "allow"},
		{"203.0.113.1", "shop/open", "203.0.113.9", "", "allow"},
		{"203.0.113.1", "shop/open", "shop/far", "", "policy_related"},
	} {
		var got *trace.Trace
		n.must(func() (err error) {
			got, err = n.Trace(t.Context(), trace.Question{From: c.from, To: c.to, Proto: icmp,
				About: c.about})
			return err
		})
		sides := got.Paths[0].Sides
		if got.Differs || sides[0].Plan != c.egress || sides[1].Plan != c.ingress {
			t.Errorf("%+v: differs %t, %q and %q by %q", c, got.Differs, sides[0].Plan,
				sides[1].Plan,
				sides[1].Rule)
		}
	}
}

// nft changes the table as another program would.
func (n *node) nft(args ...string) {
	n.t.Helper()
	n.Exec(n.t, nettest.NeedProgram(n.t, "nft"), args...)
}

// said returns the sides of a trace's first path, as text.
func said(t *trace.Trace) (words []string) {
	for _, s := range t.Paths[0].Sides {
		word := s.Direction + " " + s.Plan
		if !s.Here {
			word = s.Direction + " elsewhere"
		}
		words = append(words, word)
	}
	return words
}

func TestTraceAsksEachSideOfThisNode(t *testing.T) {
	n := traced(t)
	for name, c := range map[string]struct {
		from, to string
		port     uint16
		want     []string
		// why is a part of a side's Why.
		why string
	}{
		"allowed from another node": {"shop/client", "shop/server", 80,
			[]string{"egress elsewhere", "ingress allow"}, "node there decides it"},
		"another port": {"shop/client", "shop/server", 81,
			[]string{"egress elsewhere", "ingress policy_ingress"}, "no rule of these policies"},
		"another pod": {"shop/open", "shop/server", 80,
			[]string{"egress allow", "ingress policy_ingress"}, "no policy isolates the pod"},
		"from the server": {"shop/server", "shop/open", 80,
			[]string{"egress policy_egress", "ingress allow"}, "no rule of these policies"},
		"DNS": {"shop/server", "shop/far", 53,
			[]string{"egress policy_egress", "ingress elsewhere"}, "cluster's DNS"},
		"by address": {"198.18.2.9", "198.18.1.1", 80,
			[]string{"egress elsewhere", "ingress allow"}, "node there decides it"},
		"from outside": {"192.0.2.1", "shop/server", 80,
			[]string{"egress elsewhere", "ingress policy_ingress"}, "192.0.2.1 is not a pod"},
		"from the node": {"127.0.0.1", "shop/server", 80,
			[]string{"egress elsewhere", "ingress allow"}, "processes of this node"},
		"to the node": {"shop/server", "127.0.0.1", 80,
			[]string{"egress policy_egress", "ingress elsewhere"}, "127.0.0.1 is not a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := n.ask(c.from, c.to, c.port)
			errtest.Must(t, err)
			if words := said(got); !slices.Equal(words, c.want) || got.Differs {
				t.Errorf("%q, want %q: %+v", words, c.want, got)
			}
			sides := got.Paths[0].Sides
			if !strings.Contains(sides[0].Why+sides[1].Why, c.why) {
				t.Errorf("no side says %q: %+v", c.why, sides)
			}
		})
	}

	// Both families of two pods of this node; the policy that allows is named.
	if got, err := n.ask("shop/open", "shop/server", 80); err != nil || len(got.Paths) != 2 {
		t.Errorf("paths of two families: %+v, %v", got, err)
	}
	got, err := n.ask("shop/client", "shop/server", 80)
	if err != nil || !slices.Equal(got.Paths[0].Sides[1].Allowing, []string{"shop/web"}) {
		t.Errorf("trace %+v, %v, want policy shop/web", got, err)
	}
}

func TestTraceRefusesWhatItCannotAnswer(t *testing.T) {
	n := traced(t)
	n.put("unattached", nil)
	for name, c := range map[string]struct{ from, to, want string }{
		"both elsewhere": {"shop/client", "shop/far", "run the command on the node of the pod"},
		"no such pod": {"shop/none", "shop/server", "no pod is called shop/none, or it has " +
			"finished: namespace shop has client, "},
		"no such namespace": {"none/x", "shop/server", "namespace none does not exist, the " +
			"cluster has shop"},
		"host network":   {"shop/host", "shop/server", "write the node's address"},
		"no address yet": {"shop/unattached", "shop/server", "not attached to this node yet"},
		"no end":         {"server", "shop/server", "write NAMESPACE/NAME or an address"},
		"two families":   {"fd42::1", "198.18.1.1", "no addresses of one family"},
	} {
		if _, err := n.ask(c.from, c.to, 80); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestTraceSeesThatTheKernelDiffers(t *testing.T) {
	n := traced(t)
	for name := range n.shown.Load().plan.Sets.All() {
		n.nft("flush", "set", "inet", abi.NFTPolicyTable, name+"_4")
	}
	got, err := n.ask("shop/client", "shop/server", 80)
	errtest.Must(t, err)
	side := got.Paths[0].Sides[1]
	if !got.Differs || !side.Differs || side.Plan != "allow" || side.Kernel != "policy_ingress" {
		t.Errorf("peers flushed: %+v", got)
	}

	// A rule of another program makes the table unreadable.
	n.nft("insert", "rule", "inet", abi.NFTPolicyTable, "ingress", "accept")
	got, err = n.ask("shop/client", "shop/server", 80)
	errtest.Must(t, err)
	if side = got.Paths[0].Sides[1]; !got.Differs || side.Kernel != "unreadable" ||
		!strings.Contains(side.Why, "another program wrote rule 1") {
		t.Errorf("a rule inserted: %+v", got)
	}

	// The daemon restores the table, and then both agree.
	n.TableChanged()
	n.step()
	if got, err = n.ask("shop/client", "shop/server", 80); err != nil || got.Differs {
		t.Errorf("restored: %+v, %v", got, err)
	}
}

// revisionsOf returns the revisions of policies, as a list has them.
func revisionsOf(all ...policy.Policy) policy.Revisions {
	listed := policy.Revisions{}
	for _, p := range all {
		listed[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: p.Namespace,
			Name: p.Name.Name}] = p.Object
	}
	return listed
}

func TestProgressSaysWhatIsMissing(t *testing.T) {
	n := newNode(t)
	n.put("server", map[string]string{"app": "server"})
	missing := func(want string, listed ...policy.Policy) {
		t.Helper()
		p := n.Progress(revisionsOf(listed...), "")
		if p.Enforced != (want == "") || !strings.Contains(strings.Join(p.Missing, "; "), want) {
			t.Errorf("progress %+v, want missing %q", p, want)
		}
	}

	missing("not listed")
	n.listed()
	missing("")
	missing("shop/deny was not received yet", denyAll)
	n.PutPolicy(denyAll)
	missing("veild is putting", denyAll)
	missing("the deletion of shop/deny")
	n.step()
	missing("", denyAll)
	changed := denyAll
	changed.Object.Generation++
	missing("a change of shop/deny", changed)

	// A new pod does not make policies count as missing.
	n.put("another", nil)
	missing("", denyAll)
}

// Without a list, a revision leads to the same answer.
func TestProgressToARevisionSaysWhatIsMissing(t *testing.T) {
	n := newNode(t)
	n.put("server", map[string]string{"app": "server"})
	missing := func(want, revision string) {
		t.Helper()
		p := n.ProgressTo(revision, "")
		if p.Enforced != (want == "") || !strings.Contains(strings.Join(p.Missing, "; "), want) ||
			p.Enforced != (p.Revision == revision) {
			t.Errorf("progress %+v, want missing %q", p, want)
		}
	}

	missing("not listed", "r")
	n.listed()
	none := n.Progress(nil, "").Revision
	missing("", none)
	n.PutPolicy(denyAll)
	missing("was not received", none)
	told := n.Status().Told
	missing("veild is putting", told)
	n.step()
	missing("", told)
	p := n.Progress(revisionsOf(denyAll), "")
	if again := n.ProgressTo(told, ""); told == none || p.Revision != told || again.Policies != 1 {
		t.Errorf("by a list %+v, by revision %+v", p, again)
	}
}

// A node counts as a peer with the addresses that it is believed to have.
func TestClusterPolicyIsInForceAndNamed(t *testing.T) {
	n := newNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.put("client", map[string]string{"app": "client"})
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.wantTalk("client", 2, true)

	all := policy.Selector{}
	deny := policy.ClusterPolicy{Name: "guests", Pods: policy.Selector{{Key: "app",
		Values: []string{"server"}}}, Rules: [2][]policy.ClusterRule{{{Action: policy.Deny,
		Peers: []policy.Peer{{Namespaces: &all}}}}, {{Action: policy.Deny,
		Peers: []policy.Peer{{Nodes: &all}}}}}}
	n.PutClusterPolicy(deny)
	n.step()
	n.wantTalk("client", 2, false)
	got, err := n.ask("shop/client", "shop/server", 80)
	errtest.Must(t, err)
	if s := got.Paths[0].Sides[1]; got.Differs || s.Cluster != "guests" ||
		s.Plan != "policy_admin" || !strings.Contains(s.Why, "guests denies it") {
		t.Errorf("trace %+v, want a denial by policy guests", got)
	}
	if p := n.Progress(nil, ""); p.Enforced || len(p.Missing) != 1 ||
		!strings.Contains(p.Missing[0], "the deletion of ClusterNetworkPolicy guests") {
		t.Errorf("progress %+v, want a missing deletion", p)
	}
	listed := policy.Revisions{{Kind: policy.KindClusterNetworkPolicy,
		Name: deny.Name}: deny.Object}
	if p := n.Progress(listed, ""); !p.Enforced {
		t.Errorf("progress %+v, want enforced", p)
	}

	const other = "198.19.0.7"
	n.SetNodeLabels(map[string]map[string]string{"there": {}}, nil)
	// Nodes of sites have no Node object here, so no selector selects them.
	n.SetNodeAddrs(map[string][]netip.Addr{"b/there": {netip.MustParseAddr(other)}})
	n.step()
	wantEgress := func(want string) {
		t.Helper()
		got, err := n.ask("shop/server", other, 80)
		errtest.Must(t, err)
		if s := got.Paths[0].Sides[0]; got.Differs || s.Plan != want {
			t.Errorf("trace %+v, want verdict %s", got, want)
		}
	}
	wantEgress("allow")
	n.SetNodeAddrs(map[string][]netip.Addr{"there": {netip.MustParseAddr(other)}})
	n.step()
	wantEgress("policy_admin")

	n.DeleteClusterPolicy("guests")
	n.step()
	n.wantTalk("client", 2, true)
}

func TestTraceToTheOwnNodeSaysWhyItIsAllowed(t *testing.T) {
	n := traced(t)
	n.options.AllowOwnNode = true
	n.restart()
	n.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true, true}})
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	got, err := n.ask("shop/server", "127.0.0.1", 80)
	errtest.Must(t, err)
	s := got.Paths[0].Sides[0]
	if got.Differs || s.Plan != "allow" || s.Rule == "" || !strings.Contains(s.Why,
		"policyOwnNode") ||
		!slices.Equal(s.Isolating, []string{"shop/deny"}) || len(s.Allowing) > 0 {
		t.Errorf("trace to the own node: %+v", got)
	}
	v, err := n.ShowPod(policy.Name{Namespace: "shop", Name: "server"})
	if err != nil || !v.Egress.OwnNode || v.Ingress.OwnNode {
		t.Errorf("view of the pod: %+v, %v, want egress to its own node", v, err)
	}
}
