package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// balancerIPs are LoadBalancer IPs of two services, of both families.
var balancerIPs = [][]netip.Addr{nettest.Addrs("198.18.78.1", "fd42:5::1"),
	nettest.Addrs("198.18.78.2", "fd42:5::2")}

// TestNodesWithMoreAddresses serves on nodes with a second NIC that is registered first, a VIP on
// lo and a second IPv6 address. It does so by kube-proxy, in both of its modes, and by the service
// table. kube-proxy masquerades into tunnels, also pods' packets to a NodePort, and peers accept
// only a Node's own addresses.
func TestNodesWithMoreAddresses(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run("kube-proxy, "+mode, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{MoreAddresses: true})
			kubeProxy(ctx, t, l, l.Nodes()[0], mode)
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

// kubeProxy starts kube-proxy on a node, with the node's kubeconfig.
func kubeProxy(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, mode string) {
	t.Helper()
	if _, err := os.Stat(l.Program("kube-proxy")); err != nil {
		t.Fatalf("%v: run `make kubernetes` first", err)
	}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "lab:node-proxier"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "system:node-proxier"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind,
			Name: "system:serviceaccounts:" + metav1.NamespaceSystem}},
	}
	if _, err := l.Control.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	var pods []string
	for _, r := range l.Family().ClusterRanges() {
		pods = append(pods, r.String())
	}

	_, err := n.Start(ctx, l.Program("kube-proxy"), "--kubeconfig=/etc/kubeveil/kubeconfig",
		"--hostname-override="+n.Name, "--proxy-mode="+mode,
		"--cluster-cidr="+strings.Join(pods, ","),
		// These limits apply to the whole machine.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0")
	errtest.Must(t, err)
}

// moreAddresses sends requests to the services of the first node from pods of both nodes, a process
// of the host and a client outside. One service has its backend on that node, the other on the
// second.
func moreAddresses(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	client, backends := namedPods(ctx, t, l, 1, "a", "b")
	other := nodetest.AddPod(ctx, t, l.Nodes()[1], "other")
	n := l.Nodes()[0]
	for i, at := range []string{"near", "far"} {
		name := backends[i].Name
		s := publish(ctx, t, l, at, corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
			backends[i])
		balancer := balancerIPs[i]
		balance(ctx, t, l, s, n, balancer[0], balancer[1])

		each(func(six bool, proto string) {
			toClusterIP, toNodePort := clusterIP(t, s, six), nodePort(t, s, n, proto, six)
			toBalancer := netip.AddrPortFrom(balancer[map[bool]int{true: 1}[six]], servicePort)
			for _, q := range []struct {
				asker string
				from  traffic.Place
				to    map[string]netip.AddrPort
			}{
				// First: a pod's packet to a balancer that is not translated yet leaves in clear.
				{"outside", l.Outside, map[string]netip.AddrPort{"NodePort": toNodePort,
					"LoadBalancer": toBalancer}},
				{"pod", client, map[string]netip.AddrPort{"ClusterIP": toClusterIP,
					"NodePort": toNodePort, "LoadBalancer": toBalancer}},
				{"other node's pod", other, map[string]netip.AddrPort{"NodePort": toNodePort}},
				{"host", n, map[string]netip.AddrPort{"ClusterIP": toClusterIP,
					"NodePort": toNodePort, "LoadBalancer": toBalancer}},
			} {
				for kind, to := range q.to {
					t.Run(fmt.Sprintf("%s to %s, backend %s, %s %s", q.asker, kind, at,
						family(six), proto), func(t *testing.T) {
						answers(ctx, t, q.from, traffic.Question{Proto: proto, To: to, Count: 5,
							Egress: q.from == l.Outside}, everyone(name))
					})
				}
			}
		})
	}
	noLeaksBetween(t, l)
}
