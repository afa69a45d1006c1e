package storage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// installChecks: the results of veilctl check for a real API server, from a cluster that lacks
// everything to one that is fit, and with an addition that must not be there.
func installChecks(ctx context.Context, t *testing.T, l *lab.Lab) {
	admin := kubeconfig(t, l, "admin", "")
	for _, step := range []struct {
		name string
		do   func(context.Context, *testing.T, *lab.Lab)
		as   string
		fit  bool
		// want are parts of lines: level, check and what was found.
		want []string
	}{
		{"partly installed, and nothing of kubeadm's", nil, admin, false, []string{
			"ok       api server", "warning  Kubeveil               partly installed; these are missing: " +
				"configmaps/kubeveil, daemonsets/veil-wg, daemonsets/veild",
			"ERROR    ranges                 kube-system has no ConfigMap kubeadm-config",
			"ERROR    way to the API server", "no node yet",
		}},
		{"as kubeadm makes it", likeKubeadm, admin, true, []string{
			"ok       rights", "ok       ranges                 pods 198.19.0.0/16",
			"ok       way to the API server", "ok       pod CIDRs              each of 2 nodes",
			"ok       overlaps", "ok       other CNI", "the cluster is fit for Kubeveil",
		}},
		{"by a user without rights", nil, kubeconfig(t, l, "nobody", nobodysToken(ctx, t, l)),
			false, []string{
				"ERROR    rights", "you may not create, get, patch clusterrolebindings",
				"customresourcedefinitions.apiextensions.k8s.io", "warning  nodes", "forbidden",
				"do: use a kubeconfig",
			}},
		{"with pod CIDRs that overlap", func(ctx context.Context, t *testing.T,
			l *lab.Lab) {
			joinNode(ctx, t, l, 3, 1)
		}, admin, false, []string{
			"ERROR    overlaps", "node-3: it claims the pod prefix 198.19.1.0/24",
		}},
		{"with another network plugin", flannel, admin, false,
			[]string{"ERROR    other CNI              Flannel is installed: DaemonSet " +
				"kube-system/kube-flannel-ds"}},
	} {
		if step.do != nil {
			step.do(ctx, t, l)
		}
		out, code := installCheck(ctx, t, l, step.as)
		t.Logf("%s:\n%s", step.name, out)
		if (code == 0) != step.fit || code > 1 {
			t.Errorf("%s: exit status %d, fit %v", step.name, code, step.fit)
		}
		for _, w := range step.want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: it does not say %q", step.name, w)
			}
		}
	}

	out, _ := installCheck(ctx, t, l, admin, "-o", "json")
	var report struct {
		Fit      bool
		Findings []struct{ Check, Level, Found, Do string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Fit ||
		len(report.Findings) < 10 {
		t.Errorf("as JSON: %+v, %v", report, err)
	}
}

// installCheck runs veilctl on the control plane's host.
func installCheck(ctx context.Context, t *testing.T, l *lab.Lab, kubeconfig string,
	args ...string) (string, int) {
	t.Helper()
	out, err := l.Control.Host().Command(ctx, l.Program("veilctl"),
		append([]string{"check", "--kubeconfig", kubeconfig},
			args...)...).CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	if status != nil {
		return string(out), status.ExitCode()
	}
	return string(out), 0
}

// kubeconfig writes one for the administrator, or for the owner of a token, and returns its path.
func kubeconfig(t *testing.T, l *lab.Lab, name, token string) string {
	t.Helper()
	c := l.Control.Config
	user := clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	if token != "" {
		user = clientcmdapi.AuthInfo{Token: token}
	}
	text, err := apiserver.Kubeconfig(clientcmdapi.Cluster{Server: c.Host,
		CertificateAuthorityData: c.CAData}, user)
	errtest.Must(t, err)
	path := l.Control.Host().Path("/run/" + name + ".kubeconfig")
	filetest.Write(t, path, text, 0o600)
	return "/run/" + name + ".kubeconfig"
}

func nobodysToken(ctx context.Context, t *testing.T, l *lab.Lab) string {
	t.Helper()
	accounts := l.Control.Client.CoreV1().ServiceAccounts("kube-system")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := accounts.CreateToken(ctx, "nobody", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	return r.Status.Token
}

// likeKubeadm makes the objects that kubeadm leaves in a cluster, and two nodes.
func likeKubeadm(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	for name, data := range map[string]map[string]string{
		"kubeadm-config": {"ClusterConfiguration": fmt.Sprintf(
			"kind: ClusterConfiguration\nnetworking: {podSubnet: %q, serviceSubnet: %q}\n",
			nodetest.JoinPrefixes(l.Family().ClusterRanges()),
			nodetest.JoinPrefixes(l.Family().ServiceRanges()))},
		"kube-proxy": {"kubeconfig.conf": fmt.Sprintf(
			"clusters: [{cluster: {server: %q}}]\nusers: [{user: {tokenFile: "+
				"/var/run/secrets/kubernetes.io/serviceaccount/token}}]\n", l.Control.URL())},
	} {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
		if _, err := l.Control.Client.CoreV1().ConfigMaps("kube-system").Create(ctx, m,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	joinNode(ctx, t, l, 1, 1)
	joinNode(ctx, t, l, 2, 2)
}

// joinNode makes a Node with the pod CIDRs of a number.
func joinNode(ctx context.Context, t *testing.T, l *lab.Lab, number, cidr int) {
	t.Helper()
	name := fmt.Sprintf("node-%d", number)
	cidrs := []string{fmt.Sprintf("198.19.%d.0/24", cidr), fmt.Sprintf("fd42:1:0:%d::/64", cidr)}
	nodes := l.Control.Client.CoreV1().Nodes()
	n, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Spec: corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fmt.Sprintf("198.18.0.%d", 10+number)}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady,
		Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
		Message: "cni plugin not initialized"}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.1.0-56-cloud-amd64",
		ContainerRuntimeVersion: "containerd://2.4.0", KubeletVersion: "v1.36.3",
		Architecture: "amd64"}
	if _, err := nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func flannel(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	labels := map[string]string{"app": "flannel"}
	_, err := l.Control.Client.AppsV1().DaemonSets("kube-system").Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-flannel-ds"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "flannel",
					Image: "flannel"}}},
			}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
}
