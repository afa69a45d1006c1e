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
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
)

// balancerIPs are LoadBalancer IPs, by family.
var balancerIPs = []netip.Addr{netip.MustParseAddr("198.18.78.1"), netip.MustParseAddr("fd42:5::1")}

// TestNodesWithMoreAddresses serves on nodes with a second NIC that is registered first, a VIP on
// lo and a second IPv6 address: by kube-proxy, in both of its modes, and by the service table.
// kube-proxy masquerades into tunnels, and peers take only a Node's own addresses.
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
		// These limits are the machine's.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0")
	if err != nil {
		t.Fatal(err)
	}
}

// moreAddresses asks a service whose only backend is on the second node, by way of the first.
func moreAddresses(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	client, backends := namedPods(ctx, t, l, 1, "a", "b")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		backends[1])
	n := l.Nodes()[0]
	balance(ctx, t, l, web, n, balancerIPs...)
	each(func(six bool, proto string) {
		for name, q := range map[string]struct {
			from lab.Place
			to   netip.AddrPort
		}{
			"outside to NodePort": {l.Outside, nodePort(t, web, n, proto, six)},
			"outside to LoadBalancer": {l.Outside,
				netip.AddrPortFrom(balancerIPs[map[bool]int{true: 1}[six]], servicePort)},
			"host to ClusterIP": {n, clusterIP(t, web, six)},
			"pod to ClusterIP":  {client, clusterIP(t, web, six)},
		} {
			t.Run(fmt.Sprintf("%s %s %s", name, family(six), proto), func(t *testing.T) {
				answers(ctx, t, q.from, lab.Question{Proto: proto, To: q.to, Count: 5,
					Egress: q.from == l.Outside}, everyone("b"))
			})
		}
	})
	noLeaksBetween(t, l)
}
