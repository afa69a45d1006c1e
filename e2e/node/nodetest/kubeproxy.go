package nodetest

import (
	"context"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// KubeProxy starts kube-proxy on nodes, with the kubeconfig of each node.
func KubeProxy(ctx context.Context, t *testing.T, l *lab.Lab, mode string, nodes ...*lab.Node) {
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

	for _, n := range nodes {
		_, err := n.Start(ctx, l.Program("kube-proxy"), "--kubeconfig=/etc/kubeveil/kubeconfig",
			"--hostname-override="+n.Name, "--proxy-mode="+mode,
			"--cluster-cidr="+strings.Join(pods, ","),
			// These limits apply to the whole machine.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
			"--conntrack-tcp-timeout-close-wait=0")
		errtest.Must(t, err)
	}
}
