package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

var serviceExports = schema.GroupVersionResource{Group: "multicluster.x-k8s.io",
	Version: "v1beta1", Resource: "serviceexports"}

// exportOf returns the ServiceExport of a service in namespace default, for these sites; "" means
// all.
func exportOf(service, sites string) *unstructured.Unstructured {
	meta := map[string]any{"namespace": "default", "name": service}
	if sites != "" {
		meta["annotations"] = map[string]any{cluster.SitesAnnotation: sites}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": meta}}
}

// putExport writes a ServiceExport, also while its definition is not served yet.
func putExport(ctx context.Context, t *testing.T, l *lab.Lab, service, sites string) {
	t.Helper()
	errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
		return nodetest.Apply(ctx, l, exportOf(service, sites))
	}))
}

// exportSlices makes the EndpointSlices of a service: the echo port of these addresses on a node.
func exportSlices(ctx context.Context, t *testing.T, l *lab.Lab, service, node string,
	addrs []netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		kind := discoveryv1.AddressTypeIPv4
		if a.Is6() {
			kind = discoveryv1.AddressTypeIPv6
		}
		s := &discoveryv1.EndpointSlice{AddressType: kind, ObjectMeta: metav1.ObjectMeta{
			Name:   service + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(a.String()),
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a.String()}, NodeName: &node}}}
		port := int32(traffic.EchoPort)
		for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			name := strings.ToLower(string(p))
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &port})
		}
		_, err := l.Control.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, s,
			metav1.CreateOptions{})
		errtest.Must(t, err)
	}
}

// waitExports waits until a number of exported endpoints of the node is open to its site.
func waitExports(ctx context.Context, t *testing.T, n *lab.Node, open int) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
		if !s.Ready || len(s.Sites) != 1 || s.Sites[0].Nodes != 1 || s.Sites[0].Exports == nil ||
			!s.Sites[0].Exports.Listed || s.Sites[0].Exports.Open != open {
			return fmt.Errorf("ready %t, sites %+v, problems %q", s.Ready, s.Sites, s.Problems)
		}
		return nil
	})
}

// scan sends to the echo port of each address from each place, and returns which are reached, as
// ADDRESS/PROTOCOL.
func scan(ctx context.Context, from []traffic.Place, to []netip.Addr) (reached []string) {
	for _, place := range from {
		for _, a := range to {
			for _, proto := range []string{"tcp", "udp"} {
				if _, err := traffic.Send(ctx, place, traffic.Exchange{Proto: proto, To: a, Count: 1,
					Timeout: 400 * time.Millisecond}); err == nil {
					reached = append(reached, fmt.Sprintf("%s/%s", a, proto))
				}
			}
		}
	}
	return reached
}

// scanFinds scans addresses from a place until all of want, as ADDRESS/PROTOCOL, is reached.
// Anything else that is reached fails the test.
func scanFinds(ctx context.Context, t *testing.T, from traffic.Place, to []netip.Addr, want []string) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		got := scan(ctx, []traffic.Place{from}, to)
		for _, r := range got {
			if !slices.Contains(want, r) {
				t.Fatalf("%s reaches %q, want %q", from, got, want)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s reaches %q, want %q", from, got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// echoes returns the echo ports of these addresses as scan does.
func echoes(addrs ...netip.Addr) (all []string) {
	for _, a := range addrs {
		all = append(all, a.String()+"/tcp", a.String()+"/udp")
	}
	return all
}

// A pod and a node of another cluster reach exported endpoints, and no other pod, port or node. The
// pods here reach all pods there.
func TestSiteReachesExportsOnly(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Sites: true})
	a, b := l.Nodes()[0], l.Nodes()[1]
	pod := func(name string) *lab.Pod {
		p, err := a.AddPod(ctx, name, lab.PodOptions{Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: "uid-of-web"}}})
		errtest.Must(t, err)
		nodetest.EchoAt(ctx, t, p)
		return p
	}
	web, db, client := pod("web"), pod("db"), nodetest.EchoPod(ctx, t, b, "client")
	nodetest.EchoAt(ctx, t, a)
	nodetest.Meet(ctx, t, web, client)
	for _, p := range []*lab.Pod{web, db} {
		exportSlices(ctx, t, l, p.Name, a.Name, p.Addrs)
	}

	putExport(ctx, t, l, "web", "")
	sites := l.SitesOf(a)
	sites[0].Reach = ""
	nodetest.Reconfigure(ctx, t, a, map[string]any{"sites": sites})
	pods := slices.Concat(web.Addrs, db.Addrs)
	waitExports(ctx, t, a, 4)
	// A process of a node reaches other nodes in clear, past the tunnel.
	for from, to := range map[traffic.Place][]netip.Addr{client: append(pods, a.Addrs...), b: pods} {
		scanFinds(ctx, t, from, to, echoes(web.Addrs...))
	}
	for _, from := range []*lab.Pod{web, db} {
		scanFinds(ctx, t, from, client.Addrs, echoes(client.Addrs...))
	}
	nodetest.ShowsDrop(ctx, t, l, a, "", func(p telemetry.DroppedPacket) bool {
		return p.Reason == "site_not_exported" && p.Src == client.Addr(false) &&
			p.Dst == a.Addrs[0] && p.Peer == "node-2/node-2"
	})
	nodetest.VeilctlSays(ctx, t, l, a, "status",
		"exports only, 1 nodes are peers, 4 endpoints of this node are open")

	exportsChange(ctx, t, l, client, web, db)
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// exportsChange removes and limits exports. Known connections to an endpoint that is closed end.
// Others continue, also while veild is replaced.
func exportsChange(ctx context.Context, t *testing.T, l *lab.Lab, client, web, db *lab.Pod) {
	t.Helper()
	a, places := web.Node, []traffic.Place{client}
	ends := nodetest.Hold(ctx, t, client, web.Addr(false))
	export := l.Control.Dynamic.Resource(serviceExports).Namespace("default")
	errtest.Must(t, export.Delete(ctx, "web", metav1.DeleteOptions{}))
	waitExports(ctx, t, a, 0)
	if got := scan(ctx, places, web.Addrs); len(got) > 0 {
		t.Errorf("without an export the site reaches %q", got)
	}

	nodetest.WaitStatus(ctx, t, a, 20*time.Second, func(s telemetry.Status) error {
		if s.Sites[0].Exports.Ended == 0 {
			return errors.New("no connection of the site has ended")
		}
		return nil
	})
	errtest.Must(t, ends.Kill(ctx))

	putExport(ctx, t, l, "db", "c, d")
	putExport(ctx, t, l, "web", "node-2")
	waitExports(ctx, t, a, 4)
	scanFinds(ctx, t, client, append(web.Addrs, db.Addrs...), echoes(web.Addrs...))

	held := nodetest.Hold(ctx, t, client, web.Addr(false))
	// An endpoint without a pod of the namespace stays closed, such as one on the host's network.
	exportSlices(ctx, t, l, "web", a.Name, a.Addrs[:1])
	nodetest.KillProgram(ctx, t, a, "veild")
	nodetest.StartProgram(ctx, t, a, "veild")
	waitExports(ctx, t, a, 4)
	s := nodetest.NodeStatus(ctx, t, a)
	if e := s.Sites[0].Exports; e.NoPods != 1 || !strings.Contains(strings.Join(s.Problems, "\n"),
		"such as on the host's network") {
		t.Errorf("exports %+v, problems %q", e, s.Problems)
	}
	if got := scan(ctx, places, a.Addrs); len(got) > 0 {
		t.Errorf("the site reaches %q of the node", got)
	}

	var result traffic.Held
	if err := held.Result(ctx, &result); err != nil || result.Records == 0 {
		t.Errorf("the held connection: %d records, %v", result.Records, err)
	}
}
