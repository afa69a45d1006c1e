package keeper

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// tried returns the result of a try of policies.
func (n *node) tried(changed policy.Policies, deleted ...policy.Ref) (t *known.Tried, err error) {
	n.t.Helper()
	n.must(func() error {
		t, err = n.known.Try(changed, deleted)
		return nil
	})
	return t, err
}

// connect opens connections of TCP and UDP from one pod to ports of another.
func (n *node) connect(from, to string, addr netip.Addr, ports ...uint16) {
	n.t.Helper()
	for _, port := range ports {
		at := netip.AddrPortFrom(addr, port)
		var l net.Listener
		n.pods[to].Run(n.t, func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
		n.t.Cleanup(func() { l.Close() })
		n.pods[from].Run(n.t, func() error {
			c, err := net.DialTimeout("tcp", at.String(), expectation)
			if err == nil {
				n.t.Cleanup(func() { c.Close() })
			}
			return err
		})
	}
}

// connections returns the tracked connections, as text with the client, the server and its port.
func (n *node) connections() (all []string) {
	n.must(func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return nl.EachConnection(c, func() { all = nil }, func(c nl.Connection) {
			all = append(all, fmt.Sprintf("%s %s/%d", c.Client, c.Server, c.Port))
		})
	})
	slices.Sort(all)
	return all
}

var expires = regexp.MustCompile(` expires \S+`)

// table returns the kernel's table with its counters, as text.
func (n *node) table() string {
	text := n.Exec(n.t, nettest.NeedProgram(n.t, "nft"), "list", "table", "inet",
		abi.NFTPolicyTable)
	return expires.ReplaceAllString(text, "")
}

// tryWithoutTrace tries policies. The kernel's table, with its counters, must not change. New links
// of pods send IPv6 packets by themselves, so it waits for a moment without such packets.
func (n *node) tryWithoutTrace(changed policy.Policies) *known.Tried {
	n.t.Helper()
	for end := time.Now().Add(expectation); ; {
		before := n.table()
		t, err := n.tried(changed)
		errtest.Must(n.t, err)
		after := n.table()
		if before == after {
			return t
		}
		if time.Now().After(end) {
			n.t.Fatalf("trying changed the table: %s", cmp.Diff(before, after))
		}
	}
}

// When the policy comes in force, exactly the connections end that the try predicted. The try
// itself changes neither the table nor its counters nor a connection.
func TestWhatATryPredictsHappens(t *testing.T) {
	n := newNode(t)
	n.put("client", map[string]string{"app": "client"})
	n.put("other", nil)
	n.put("server", map[string]string{"app": "server"})
	for i, name := range []string{"client", "other", "server"} {
		n.attach(name, i+1)
	}
	n.listed()
	for i, from := range []string{"client", "other"} {
		for j, a := range addrsOf(3) {
			// The kernel adds the route to a new address of IPv6 a moment after the address.
			n.wantTalk(from, 3, true)
			n.connect(from, "server", a, uint16(1000*(i+1)+100*j+1), uint16(1000*(i+1)+100*j+2))
		}
	}
	n.connect("server", "client", addrsOf(1)[0], 3001)

	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	web := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "web"},
		Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}},
		Isolates: [2]bool{true, true}, Rules: [2][]policy.Rule{{{
			Peers: []policy.Peer{{Pods: &client}},
			Ports: []policy.Port{{Proto: policy.TCP, First: 1001, Last: 1101}}}}}}

	connections := n.connections()
	got := n.tryWithoutTrace(policy.Policies{Namespaced: []policy.Policy{web}})
	if is := n.connections(); !slices.Equal(is, connections) {
		t.Errorf("trying changed connections: %q, before %q", is, connections)
	}
	if plan := n.shown.Load().plan; len(plan.Denials) > 0 || n.planner.Count() != 0 {
		t.Errorf("trying changed what is known: %+v", plan)
	}

	predicted := map[string]int{}
	for _, r := range got.Ends {
		predicted[fmt.Sprint(r.Direction, " ", r.Pod, " ", r.Peer, "/", r.Port)] = r.Connections
		if !slices.Equal(r.Policies, []string{"shop/web"}) {
			t.Errorf("no policy denies %+v", r)
		}
	}
	for _, want := range []string{"ingress shop/server shop/client/1102",
		"ingress shop/server shop/other/2001", "egress shop/server shop/client/3001"} {
		if predicted[want] == 0 {
			t.Errorf("%q is not predicted to end: %v", want, predicted)
		}
	}

	ends := 0
	for _, r := range got.Ends {
		ends += r.Connections
	}
	n.PutPolicy(web)
	n.step()
	n.must(n.revoker.Once)
	n.must(n.revoker.Close)
	left := n.connections()
	if gone := len(connections) - len(left); gone != ends || got.Connections != len(connections) ||
		got.Same != len(left) {
		t.Errorf("predicted that %d of %d connections end, and %d did: %+v", ends, len(connections),
			gone, got)
	}
	for _, c := range left {
		if port := c[strings.Index(c, "/")+1:]; port != "1001" && port != "1002" && port != "1101" {
			t.Errorf("%s was not predicted to stay", c)
		}
	}

	// A deletion of the policy ends no connection.
	back, err := n.tried(policy.Policies{}, policy.Ref{Kind: policy.KindNetworkPolicy,
		Namespace: "shop", Name: "web"})
	if err != nil || len(back.Ends) > 0 || back.Same != len(left) {
		t.Errorf("after a deletion: %+v, %v", back, err)
	}
}

func TestTryRefusesWhatCannotBe(t *testing.T) {
	n := newNode(t)
	if _, err := n.tried(policy.Policies{}); err == nil || !strings.Contains(err.Error(),
		"has not listed pods") {
		t.Errorf("before the lists: %v", err)
	}
	n.put("server", map[string]string{"app": "server"})
	n.PutPolicy(denyAll)
	n.listed()

	elsewhere := denyAll
	elsewhere.Namespace = "shp"
	for name, c := range map[string]struct {
		changed policy.Policies
		deleted string
		want    string
	}{
		"a namespace that does not exist": {policy.Policies{Namespaced: []policy.Policy{elsewhere}},
			"NetworkPolicy/shop/deny", "namespace shp does not exist: the cluster has shop"},
		"a policy that does not exist": {policy.Policies{}, "NetworkPolicy/shop/dney",
			"no NetworkPolicy/shop/dney to delete; these exist: NetworkPolicy/shop/deny"},
		"none of the cluster": {policy.Policies{}, "ClusterNetworkPolicy/guests",
			"no ClusterNetworkPolicy/guests to delete; these exist: none"},
	} {
		r, err := policy.ParseRef(c.deleted)
		errtest.Must(t, err)
		if _, err := n.tried(c.changed, r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// Conntrack does not see connections of the fast path.
func TestTryJudgesConnectionsOfTheFastPath(t *testing.T) {
	n := newNode(t)
	end := func(i int, port uint16) netip.AddrPort { return netip.AddrPortFrom(addrsOf(i)[0], port) }
	n.fast = &fakeFast{n: n, opened: []nl.Opened{{Client: end(1, 40000), Server: end(2, 80)}}}
	n.restart()
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	got, err := n.tried(policy.Policies{Namespaced: []policy.Policy{denyAll}})
	errtest.Must(t, err)
	if len(got.Ends) != 1 || got.Ends[0].Peer != "shop/client" || got.Ends[0].Port != 80 {
		t.Errorf("try %+v, want that one connection ends", got)
	}
}

// A try does not count drops for other reasons, and drops of packets that are allowed now.
func TestTryJudgesTheLastDrops(t *testing.T) {
	n := newNode(t)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.PutPolicy(denyAll)
	n.attach("client", 1)
	n.attach("server", 2)
	n.listed()
	drop := func(reason string, dst int, proto string) telemetry.DroppedPacket {
		return telemetry.DroppedPacket{Reason: reason, Src: addrsOf(1)[0], Dst: addrsOf(dst)[0],
			Protocol: proto, DstPort: 80}
	}
	n.drops = func() []telemetry.DroppedPacket {
		return []telemetry.DroppedPacket{drop("policy_ingress", 2, "tcp"),
			drop("policy_ingress", 2, "tcp"), drop("policy_ingress", 2, "udp"),
			drop("policy_ingress", 1, "tcp"), drop("policy_midstream", 2, "tcp"),
			drop("forged_source", 2, "tcp")}
	}

	open := denyAll
	open.Rules[policy.Ingress] = []policy.Rule{{Ports: []policy.Port{{Proto: policy.TCP}}}}
	got, err := n.tried(policy.Policies{Namespaced: []policy.Policy{open}})
	errtest.Must(t, err)
	if got.Drops != 3 || got.DropsDenied != 1 || len(got.Passes) != 1 || got.Passes[0].Drops != 2 ||
		got.Passes[0].Pod != "shop/server" || got.Passes[0].Peer != "shop/client" {
		t.Errorf("try of drops: %+v", got)
	}
}
