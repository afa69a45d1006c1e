package services_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// balancerIPs are LoadBalancer IPs of two services, of both families, and externalAddrs their
// external IPs.
var (
	balancerIPs = [][]netip.Addr{nettest.Addrs("198.18.78.1", "fd42:5::1"),
		nettest.Addrs("198.18.78.2", "fd42:5::2")}
	externalAddrs = [][]netip.Addr{nettest.Addrs("198.18.78.11", "fd42:5::11"),
		nettest.Addrs("198.18.78.12", "fd42:5::12")}
)

// TestNodesWithMoreAddresses serves on nodes with a second NIC that is registered first, a VIP on
// lo and a second IPv6 address. It does so by kube-proxy, in both of its modes, and by the service
// table. kube-proxy masquerades into tunnels, also pods' packets to a NodePort, and peers accept
// only a Node's own addresses.
func TestNodesWithMoreAddresses(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run("kube-proxy, "+mode, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{MoreAddresses: true})
			nodetest.KubeProxy(ctx, t, l, mode, l.Nodes()...)
			moreAddresses(ctx, t, l)
		})
	}
	for _, routing := range hostRoutings {
		t.Run("serviceProxy ebpf, hostRouting "+routing, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{MoreAddresses: true,
				VeildConfig: map[string]any{
					"serviceProxy": "ebpf", "services": map[string]any{
						"limits": map[string]any{"backendSlots": 1 << 16}, "hostRouting": routing,
					},
				}})
			moreAddresses(ctx, t, l)
		})
	}
}

// moreAddresses sends requests to services of each kind and to host ports, from pods of both nodes,
// a process of the first node's host and a client outside. One service has its backend on the first
// node, the other on the second. A host port is on the node of its pod.
func moreAddresses(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	client, other := nodetest.AddPod(ctx, t, l.Nodes()[0], "client"),
		nodetest.AddPod(ctx, t, l.Nodes()[1], "other")
	n := l.Nodes()[0]
	for i, at := range []string{"near", "far"} {
		backend := namedPodWithHostPort(ctx, t, l.Nodes()[i], at)
		balancer, external := balancerIPs[i], externalAddrs[i]
		s := publish(ctx, t, l, at, corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ExternalIPs: []string{external[0].String(), external[1].String()}}, backend)
		assign(ctx, t, l, s, balancer...)

		each(func(six bool, proto string) {
			at := map[bool]int{true: 1}[six]
			published := map[string]netip.AddrPort{
				"NodePort":     nodePort(t, s, n, proto, six),
				"LoadBalancer": netip.AddrPortFrom(balancer[at], servicePort),
				"external IP":  netip.AddrPortFrom(external[at], servicePort),
				"host port": netip.AddrPortFrom(nodeAddr(backend.Node, six),
					nodetest.HostPortOfPod),
			}
			inside := maps.Clone(published)
			inside["ClusterIP"] = clusterIP(t, s, six)
			ofHost := maps.Clone(inside)
			if backend.Node != n {
				delete(ofHost, "host port") // between processes of nodes: in clear, by exception 2
			}
			for _, q := range []struct {
				asker string
				from  traffic.Place
				via   *lab.Node // of clients outside
				to    map[string]netip.AddrPort
			}{
				// First: a pod's packet to a balancer that is not translated yet leaves in clear.
				{"outside, by the other node", l.Outside, l.Nodes()[1], published},
				{"outside", l.Outside, n, published},
				{"pod", client, nil, inside},
				{"other node's pod", other, nil, inside},
				{"host", n, nil, ofHost},
			} {
				if q.via != nil {
					routeVia(ctx, t, l, q.via, balancer[at], external[at])
				}
				for kind, to := range q.to {
					t.Run(fmt.Sprintf("%s to %s, backend %s, %s %s", q.asker, kind, s.Name,
						family(six), proto), func(t *testing.T) {
						answers(ctx, t, q.from, traffic.Question{Proto: proto, To: to, Count: 5,
							Egress: q.from == l.Outside}, everyone(backend.Name))
					})
				}
			}
		})
	}
	noLeaksBetween(t, l)
}

// namedPodWithHostPort returns a new pod that answers with its name. Its node publishes it at
// nodetest.HostPortOfPod.
func namedPodWithHostPort(ctx context.Context, t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	var ports []lab.PortMapping
	for _, proto := range []string{"tcp", "udp"} {
		ports = append(ports, lab.PortMapping{HostPort: nodetest.HostPortOfPod,
			ContainerPort: traffic.NamePort, Protocol: proto})
	}
	p, err := n.AddPod(ctx, name, lab.PodOptions{Ports: ports})
	errtest.Must(t, err)
	errtest.Must(t, errtest.Of(traffic.Named(ctx, p, name, 1)))
	return p
}
