package sites_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/linked"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// world is two linked clusters with pods in the namespace shop of each: a client, a server whose
// service web both clusters export, and a pod that nothing exports.
type world struct {
	*linked.Pair
	clients, servers, hidden [2]*lab.Pod // of a and of b
	// addrs are the addresses of the import web in a.
	addrs []netip.Addr
}

// webPorts are the ports of the service web. The first has the servers' names.
var webPorts = []corev1.ServicePort{
	port("tcp", corev1.ProtocolTCP, 80, traffic.NamePort),
	port("udp", corev1.ProtocolUDP, 80, traffic.NamePort),
	port("echo", corev1.ProtocolTCP, 81, traffic.EchoPort),
	port("sink", corev1.ProtocolUDP, 82, traffic.SinkPort),
}

func port(name string, proto corev1.Protocol, number, target int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: proto, Port: number,
		TargetPort: intstr.FromInt32(target)}
}

// newWorld makes a world whose veilds have more settings. The servers are called near and far.
func newWorld(t *testing.T, settings map[string]any) (context.Context, *world) {
	t.Helper()
	t.Parallel()
	nodetest.WaitTurn(t)
	ctx, cancel := context.WithTimeout(t.Context(), labhost.Slow(5*time.Minute))
	t.Cleanup(cancel)
	p, err := linked.New(ctx, linked.Options{Imports: []string{"shop"}, VeildConfig: settings,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	errtest.Must(t, err)
	w := &world{Pair: p}
	t.Cleanup(func() {
		result, err := p.Close()
		if err != nil || result.Findings() > 0 {
			t.Errorf("%v: %v", err, result.Err())
		}
	})

	for i, c := range []*linked.Cluster{p.A, p.B} {
		errtest.Must(t, c.Control.AddNamespace(ctx, "shop"))
		for app, to := range map[string]*[2]*lab.Pod{"client": &w.clients, "server": &w.servers,
			"hidden": &w.hidden} {
			to[i], err = c.Nodes()[0].RunPod(ctx, "shop", app, map[string]string{"app": app})
			errtest.Must(t, err)
			nodetest.EchoAt(ctx, t, to[i])
			errtest.Must(t, errtest.Of(traffic.Named(ctx, to[i], []string{"near", "far"}[i], 1)))
		}
		exportWeb(ctx, t, c.Lab, w.servers[i])
	}
	until(ctx, t, "web is imported", func() error {
		o, err := p.A.Control.Dynamic.Resource(imports).Namespace("shop").Get(ctx, "web",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		texts, _, err := unstructured.NestedStringSlice(o.Object, "spec", "ips")
		if err != nil || len(texts) != 2 {
			return fmt.Errorf("addresses %q: %w", texts, err)
		}
		w.addrs = nil
		for _, text := range texts {
			w.addrs = append(w.addrs, netip.MustParseAddr(text))
		}
		return nil
	})
	return ctx, w
}

// exportWeb makes the service shop/web with a pod, and exports it.
func exportWeb(ctx context.Context, t *testing.T, l *lab.Lab, server *lab.Pod) {
	t.Helper()
	both := corev1.IPFamilyPolicyPreferDualStack
	_, err := l.Control.Client.CoreV1().Services("shop").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: webPorts,
			IPFamilyPolicy: &both}}, metav1.CreateOptions{})
	errtest.Must(t, err)

	for _, a := range server.Addrs {
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
			ObjectMeta: metav1.ObjectMeta{Name: "web-4",
				Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a.String()},
				NodeName: &server.Node.Name}}}
		if a.Is6() {
			slice.AddressType, slice.Name = discoveryv1.AddressTypeIPv6, "web-6"
		}
		for _, p := range webPorts {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name,
				Protocol: &p.Protocol, Port: &p.TargetPort.IntVal})
		}
		_, err := l.Control.Client.DiscoveryV1().EndpointSlices("shop").Create(ctx, slice,
			metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	errtest.Must(t, nodetest.Apply(ctx, l, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": multi.String(), "kind": "ServiceExport",
		"metadata": map[string]any{"namespace": "shop", "name": "web"}}}))
}

// ask waits until the client of a gets answers of exactly these servers from the import, by both
// protocols and families.
func (w *world) ask(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	for _, addr := range w.addrs {
		for _, proto := range []string{"tcp", "udp"} {
			q := traffic.Question{Proto: proto, To: netip.AddrPortFrom(addr, 80), Count: 12}
			err := lab.Until(ctx, labhost.Slow(20*time.Second), func() error {
				c, err := traffic.TakeCensus(ctx, w.clients[0], q)
				if got := slices.Sorted(maps.Keys(c.Names)); err == nil &&
					(c.Failed > 0 || !slices.Equal(got, names)) {
					err = fmt.Errorf("%d failed (%s), answers of %q", c.Failed, c.Error, got)
				}
				return err
			})
			if err != nil {
				t.Errorf("%s to %s: %v", proto, addr, err)
			}
		}
	}
}

// Two clusters with an API server, veil-site and veild of their own: what both export is served by
// both, and nothing else is reached. Known connections continue while each program is replaced.
// When the other cluster loses its power, new connections go elsewhere.
func TestLinkedClusters(t *testing.T) {
	ctx, w := newWorld(t, map[string]any{"serviceProxy": "ebpf", "policy": "kubernetes"})
	w.ask(ctx, t, "far", "near")
	w.reachesExportsOnly(ctx, t)
	w.policies(ctx, t)
	w.replaced(ctx, t)
	w.goesElsewhere(ctx, t, w.cut(t), 5*time.Second)
}

// The same with kube-proxy, which needs veil-site to notice that the other cluster is dead. Whether
// its API server is dead too, and whether veil-site starts only then, does not matter.
func TestLinkedClustersBesideKubeProxy(t *testing.T) {
	for name, whole := range map[string]bool{"the node": false, "the whole cluster": true} {
		t.Run(name, func(t *testing.T) {
			ctx, w := newWorld(t, map[string]any{"metricsAddress": ""})
			nodetest.KubeProxy(ctx, t, w.A.Lab, "nftables", w.A.Nodes()...)
			w.ask(ctx, t, "far", "near")
			if whole {
				errtest.Must(t, w.A.Site.Term(ctx))
				errtest.Must(t, w.B.Control.StopAPIServer(ctx))
			}
			began := w.cut(t)
			if whole {
				var err error
				w.A.Site, err = w.A.Site.Restart(ctx)
				errtest.Must(t, err)
			}
			w.goesElsewhere(ctx, t, began, 20*time.Second)
		})
	}
}

// reachesExportsOnly lets the client of each cluster scan all pods and the node of the other.
func (w *world) reachesExportsOnly(ctx context.Context, t *testing.T) {
	t.Helper()
	for i, client := range w.clients {
		other := 1 - i
		addrs := slices.Concat(w.clients[other].Addrs, w.hidden[other].Addrs,
			w.servers[other].Addrs, w.servers[other].Node.Addrs)
		for _, a := range addrs {
			for _, proto := range []string{"tcp", "udp"} {
				want := proto == "tcp" && slices.Contains(w.servers[other].Addrs, a)
				_, err := traffic.Send(ctx, client, traffic.Exchange{Proto: proto, To: a, Count: 1,
					Timeout: 500 * time.Millisecond})
				if (err == nil) != want {
					t.Errorf("%s to the echo server at %s by %s: %v, want it reached: %t", client,
						a, proto, err, want)
				}
			}
		}
	}
	if n := nodetest.Dropped(ctx, t, w.servers[1].Node, "site_not_exported"); n == 0 {
		t.Error("no packet is counted as site_not_exported")
	}
}

// policies checks that policies match addresses of the other cluster, and that labels do not. A
// rule that denies pods by labels drops packets of the other cluster, because it could mean them.
func (w *world) policies(ctx context.Context, t *testing.T) {
	t.Helper()
	server, client, stranger := w.servers[0], w.clients[1], w.hidden[1]
	policies := w.A.Control.Client.NetworkingV1().NetworkPolicies("shop")
	apply := func(spec map[string]any) {
		t.Helper()
		object := map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": map[string]any{"namespace": "shop", "name": "site"}, "spec": spec}
		errtest.Must(t, nodetest.Apply(ctx, w.A.Lab, &unstructured.Unstructured{Object: object}))
	}
	blocks := func(addrs []netip.Addr) (peers []any) {
		for _, a := range addrs {
			peers = append(peers, map[string]any{"ipBlock": map[string]any{
				"cidr": netip.PrefixFrom(a, a.BitLen()).String()}})
		}
		return peers
	}
	of := func(app string) map[string]any {
		return map[string]any{"matchLabels": map[string]any{"app": app}}
	}

	nodetest.PolicyBecomes(ctx, t, client, server, true)
	apply(map[string]any{"podSelector": of("server"), "policyTypes": []any{"Ingress"},
		"ingress": []any{map[string]any{"from": blocks(client.Addrs)}}})
	nodetest.PolicyBecomes(ctx, t, stranger, server, false)
	nodetest.PolicyAllows(ctx, t, "ipBlock", client, server, true)
	clients := map[string]any{"podSelector": of("client")}
	apply(map[string]any{"podSelector": of("server"), "policyTypes": []any{"Ingress"},
		"ingress": []any{map[string]any{"from": []any{clients}}}})
	nodetest.PolicyBecomes(ctx, t, client, server, false)
	nodetest.PolicyAllows(ctx, t, "labels of this cluster's pods", w.clients[0], server, true)
	errtest.Must(t, policies.Delete(ctx, "site", metav1.DeleteOptions{}))
	nodetest.PolicyBecomes(ctx, t, client, server, true)

	_, err := w.A.Control.Dynamic.Resource(nodetest.Definitions).Create(ctx,
		nodetest.ClusterPolicyDefinition(), metav1.CreateOptions{})
	errtest.Must(t, err)
	cluster := func(direction string, rule map[string]any) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": nodetest.ClusterPolicies.GroupVersion().String(),
			"kind":       "ClusterNetworkPolicy", "metadata": map[string]any{"name": "site"},
			"spec": map[string]any{"tier": "Admin", "priority": int64(1),
				"subject": map[string]any{"namespaces": map[string]any{}}, direction: []any{rule}}}}
		errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
			return nodetest.Apply(ctx, w.A.Lab, o)
		}))
	}
	pods := func(app string) any {
		return map[string]any{"pods": map[string]any{"namespaceSelector": map[string]any{},
			"podSelector": of(app)}}
	}
	cluster("ingress", map[string]any{"action": "Deny", "from": []any{pods("nobody")}})
	nodetest.PolicyBecomes(ctx, t, client, server, false)
	nodetest.PolicyAllows(ctx, t, "a Deny of other labels", w.clients[0], server, true)
	nodetest.WaitStatus(ctx, t, server.Node, 20*time.Second, func(s telemetry.Status) error {
		if s.Policy == nil || s.Policy.Drops["policy_unknown_peer"] == 0 {
			return fmt.Errorf("drops %+v", s.Policy)
		}
		return nil
	})

	var far []any
	for _, a := range w.servers[1].Addrs {
		far = append(far, netip.PrefixFrom(a, a.BitLen()).String())
	}
	cluster("egress", map[string]any{"action": "Deny",
		"to": []any{map[string]any{"networks": far}}})
	nodetest.PolicyBecomes(ctx, t, w.clients[0], w.servers[1], false)
	nodetest.PolicyAllows(ctx, t, "networks of the other cluster", w.clients[0], server, true)
	errtest.Must(t, w.A.Control.Dynamic.Resource(nodetest.ClusterPolicies).Delete(ctx, "site",
		metav1.DeleteOptions{}))
	nodetest.PolicyBecomes(ctx, t, w.clients[0], w.servers[1], true)
}

// replaced replaces veil-site, veild and veil-wg in both clusters under connections and datagrams
// between them. No connection ends.
func (w *world) replaced(ctx context.Context, t *testing.T) {
	t.Helper()
	var held, sinks, sources []*lab.Process
	for i, client := range w.clients {
		server := w.servers[1-i]
		for _, a := range server.Addrs {
			held = append(held, nodetest.Hold(ctx, t, client, a))
		}
		sinks = append(sinks, nodetest.Sink(ctx, t, server))
		sources = append(sources, nodetest.Source(ctx, t, client, server.Addr(i == 0), 0))
	}

	for _, c := range []*linked.Cluster{w.A, w.B} {
		n := c.Nodes()[0]
		errtest.Must(t, c.Site.Term(ctx))
		var err error
		c.Site, err = c.Site.Restart(ctx)
		errtest.Must(t, err)
		errtest.Check(t, n.Program("veild").Term(ctx))
		nodetest.StartProgram(ctx, t, n, "veild")
		nodetest.WaitReady(ctx, t, n)
		old := n.Program("veil-wg") // The next one starts beside it, as the DaemonSet's surge does.
		nodetest.StartProgram(ctx, t, n, "veil-wg")
		errtest.Must(t, n.Program("veil-wg").WaitLine(ctx,
			"device taken over with its sessions", 20*time.Second))
		errtest.Check(t, old.Term(ctx))
		nodetest.WaitReady(ctx, t, n)
		w.ask(ctx, t, "far", "near")
	}

	for _, p := range held {
		var h traffic.Held
		if err := p.Result(ctx, &h); err != nil || h.Records == 0 {
			t.Errorf("a connection was lost: %v: %+v", err, h)
		}
		t.Logf("a connection: %d records, longest gap %.0f ms", h.Records, h.MaxGapMillis)
	}
	for i := range sources {
		var sent struct{ Sent, Failed uint64 }
		var d traffic.Drained
		errtest.Must(t, sources[i].Result(ctx, &sent))
		errtest.Must(t, sinks[i].Result(ctx, &d))
		t.Logf("%d datagrams sent (%d refused), %d missing", sent.Sent, sent.Failed, d.Missing)
		if d.Received == 0 || d.Missing > 1+sent.Sent/200 { // noise on a loaded machine
			t.Errorf("%d of %d datagrams were lost", d.Missing, sent.Sent)
		}
	}
}

// cut cuts the power of the other cluster's node, and returns when.
func (w *world) cut(t *testing.T) time.Time {
	t.Helper()
	errtest.Must(t, w.B.Nodes()[0].Crash())
	return time.Now()
}

// goesElsewhere checks that new connections go to the server here within a time.
func (w *world) goesElsewhere(ctx context.Context, t *testing.T, began time.Time,
	limit time.Duration) {
	t.Helper()
	last := began
	for good := 0; good < 24 && time.Since(began) < 2*labhost.Slow(limit); {
		for _, addr := range w.addrs {
			c, err := traffic.TakeCensus(ctx, w.clients[0], traffic.Question{Count: 1,
				To: netip.AddrPortFrom(addr, 80), Timeout: 300 * time.Millisecond})
			errtest.Must(t, err)
			good++
			if c.Failed > 0 {
				good, last = 0, time.Now()
			}
		}
	}
	took := last.Sub(began)
	t.Logf("the last new connection to the dead cluster failed after %s",
		took.Round(time.Millisecond))
	if took > labhost.Slow(limit) {
		t.Errorf("new connections failed for %s, want at most %s", took, limit)
	}
	w.ask(ctx, t, "near")
}
