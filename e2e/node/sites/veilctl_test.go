package sites_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/link"
)

// console is an administrator's machine with a kubeconfig of each cluster.
type console struct {
	pair
	kubeconfigs [2]string
}

// newConsole makes the administrators.
func newConsole(ctx context.Context, t *testing.T, p pair) *console {
	t.Helper()
	c := &console{pair: p}
	for i, s := range []*side{p.a, p.b} {
		_, err := s.Control.Client.CoreV1().ServiceAccounts("kube-system").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "admin"}},
			metav1.CreateOptions{})
		errtest.Must(t, err)
		_, err = s.Control.Client.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "admin"},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
					Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system",
					Name: "admin"}}}, metav1.CreateOptions{})
		errtest.Must(t, err)

		c.kubeconfigs[i] = filepath.Join(t.TempDir(), "kubeconfig-"+s.name)
		s.writeKubeconfig(ctx, t, c.kubeconfigs[i], s.gate.URL(), "admin")
	}
	return c
}

// configure writes the ConfigMap of a side. other is a site in it, unless it is nil.
func (c *console) configure(ctx context.Context, t *testing.T, s, other *side, reach string) {
	t.Helper()
	text := fmt.Sprintf("clusterRanges: [%s]\nserviceRanges: [10.96.0.0/12]\nnodeRanges: [%s]\n"+
		"source: {kind: kubernetes}\n", s.pods[0], s.nodes[0])
	s.sites = nil
	if other != nil {
		text += fmt.Sprintf("sites:\n  - {name: %s, podRanges: [%s], nodeRanges: [%s], "+
			"imports: [shop], reach: %s}\n", other.name, other.pods[0], other.nodes[0], reach)
		s.sites = []cluster.Site{{Name: other.name, PodRanges: other.pods, NodeRanges: other.nodes,
			Imports: []string{"shop"}, Reach: reach}}
	}
	maps := s.Control.Client.CoreV1().ConfigMaps("kube-system")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeveil"},
		Data: map[string]string{"veild.yaml": text}}
	_, err := maps.Update(ctx, m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, m, metav1.CreateOptions{})
	}
	errtest.Must(t, err)
}

// run runs veilctl as an administrator, and returns all that it prints. It fails unless the output
// has each of want.
func (c *console) run(ctx context.Context, t *testing.T, line string, want ...string) {
	t.Helper()
	line = strings.NewReplacer("KUBECONFIG-A", c.kubeconfigs[0], "KUBECONFIG-B",
		c.kubeconfigs[1]).Replace(line)
	out, err := exec.CommandContext(ctx, c.a.Program("veilctl"),
		strings.Fields(line)...).CombinedOutput()
	t.Logf("veilctl %s: %v\n%s", line, err, out)
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("veilctl %s: no %q in:\n%s", line, w, out)
		}
	}
}

// deliver writes the Secret of a side to the folder of its veil-site, as the kubelet does.
func (c *console) deliver(ctx context.Context, t *testing.T, s *side) {
	t.Helper()
	secret, err := s.Control.Client.CoreV1().Secrets("kube-system").Get(ctx, "veil-site",
		metav1.GetOptions{})
	errtest.Must(t, err)
	for name, text := range secret.Data {
		errtest.Must(t, os.WriteFile(filepath.Join(s.credentials, name), text, 0o600))
	}
}

// An administrator links two clusters by veilctl, and unlinks them. Each step that is missing is
// named.
func TestVeilctlLinksClusters(t *testing.T) {
	ctx, p := newPair(t)
	c := newConsole(ctx, t, p)
	const aToB = "--kubeconfig KUBECONFIG-A --from KUBECONFIG-B"
	const bToA = "--kubeconfig KUBECONFIG-B --from KUBECONFIG-A"

	c.run(ctx, t, "site link "+aToB, "Kubeveil is not installed")
	c.configure(ctx, t, p.a, nil, "")
	c.configure(ctx, t, p.b, p.a, "exports")
	c.run(ctx, t, "site link "+aToB, "the configuration of this cluster has no site",
		"podRanges: [10.245.0.0/16]", "nodeRanges: [198.51.100.0/24]")
	c.run(ctx, t, "site status --kubeconfig KUBECONFIG-A", "the configuration has no sites")
	c.configure(ctx, t, p.a, p.b, "exports")
	c.run(ctx, t, "site link --kubeconfig KUBECONFIG-A --from KUBECONFIG-A",
		"names the same cluster")
	c.run(ctx, t, "site link "+aToB, "loopback address", "--server")
	server := func(s *side) string { return " --server " + s.gate.URL() }
	c.run(ctx, t, "site link "+aToB+server(p.b), "no Ready node")
	if _, err := p.b.Control.Client.CoreV1().Namespaces().Get(ctx, link.NamespacePrefix+"a",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a link that was refused made the namespace: %v", err)
	}

	c.run(ctx, t, "site link "+aToB+server(p.b)+" --skip-path", "Site                b",
		"Namespace there     kubeveil-site-a", "Secret kube-system/veil-site, key b",
		"multicluster clusterset.local")
	c.run(ctx, t, "site link "+bToA+server(p.a)+" --skip-path -o json", `"site": "a"`)
	c.deliver(ctx, t, p.a)
	c.deliver(ctx, t, p.b)
	p.a.start(ctx)
	p.b.start(ctx)
	p.b.export(ctx, t, "web", false, "10.245.0.5")
	p.b.exportOnly(ctx, t, "none")
	until(ctx, t, "web is served in a", func() error {
		_, addrs, err := p.a.served(ctx, "web")
		if err != nil || len(addrs["b"]) != 1 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
	until(ctx, t, "the link is ready", func() error {
		conditions, err := p.a.conditions(ctx, links, "", "b")
		if err != nil || !strings.HasPrefix(conditions["Ready"], "True") {
			return fmt.Errorf("conditions %q: %w", conditions, err)
		}
		return nil
	})
	c.run(ctx, t, "site status --kubeconfig KUBECONFIG-A", "b     exports  ok     1      1   1",
		"veil-site: 0 of 2 replicas are ready", "dropped as not exported: none")
	c.run(ctx, t, "site status --kubeconfig KUBECONFIG-B",
		"ServiceExport shop/none Valid=False: there is no Service shop/none")

	c.run(ctx, t, "site unlink b "+aToB, "keeps site b open", "set reach: none")
	c.unlink(ctx, t, aToB)
	c.run(ctx, t, "site unlink b --kubeconfig KUBECONFIG-A", "nothing was left to remove")
}

// unlink closes the site in both clusters, unlinks them, and checks that nothing is left.
func (c *console) unlink(ctx context.Context, t *testing.T, flags string) {
	p := c.pair
	c.configure(ctx, t, p.a, p.b, "none")
	c.configure(ctx, t, p.b, p.a, "none")
	for _, s := range []*side{p.a, p.b} { // with the new configuration
		s.stop()
		s.start(ctx)
	}
	finalizing, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		finalize(finalizing, p.a, p.b)
	}()
	c.run(ctx, t, "site unlink b "+flags, "removed from this cluster: key b of Secret",
		"removed from the other cluster: key a of Secret",
		"removed from this cluster: namespace kubeveil-site-b",
		"removed from the other cluster: namespace kubeveil-site-a",
		"still closed in the configuration of this cluster: 10.245.0.0/16, 198.51.100.0/24")
	stop()
	<-done

	for _, s := range []*side{p.a, p.b} {
		for _, kind := range []string{"sitenodes", "siterecords"} {
			list, err := s.Control.Dynamic.Resource(kubeveil.WithResource(kind)).List(ctx,
				metav1.ListOptions{})
			if err != nil || len(list.Items) > 0 {
				t.Errorf("%s: %d %s are left: %v", s.name, len(list.Items), kind, err)
			}
		}
		if _, err := s.Control.Client.CoreV1().Secrets("kube-system").Get(ctx, "veil-site",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: the Secret is left: %v", s.name, err)
		}
	}
	if err := p.a.gone(ctx, "web"); err != nil {
		t.Error(err)
	}
}

// finalize does what the namespace controller does, which the labs lack: it empties namespaces that
// are being deleted, and lets them go.
func finalize(ctx context.Context, sides ...*side) {
	for ctx.Err() == nil {
		for _, s := range sides {
			client := s.Control.Client.CoreV1()
			list, err := client.Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, n := range list.Items {
				if n.DeletionTimestamp == nil {
					continue
				}
				// What fails is tried again in the next turn.
				_ = s.Control.Dynamic.Resource(records).Namespace(n.Name).DeleteCollection(ctx,
					metav1.DeleteOptions{}, metav1.ListOptions{})
				_ = client.ServiceAccounts(n.Name).DeleteCollection(ctx, metav1.DeleteOptions{},
					metav1.ListOptions{})
				_ = s.Control.Client.RbacV1().RoleBindings(n.Name).DeleteCollection(ctx,
					metav1.DeleteOptions{}, metav1.ListOptions{})
				n.Spec.Finalizers = nil
				_, _ = client.Namespaces().Finalize(ctx, &n, metav1.UpdateOptions{})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
