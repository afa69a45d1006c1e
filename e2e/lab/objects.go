package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
)

// The service account of veild in the manifests.
const accountNamespace, accountName = "kube-system", "veild"

// applyManifests applies the manifests of the repository, like `kubectl apply`.
func (c *Control) applyManifests(ctx context.Context) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}

	var objects []*unstructured.Unstructured
	dirs := []string{"manifests/crd", "manifests/cni"}
	if c.lab.opts.linked() {
		dirs = append(dirs, "manifests/components/sites/crd")
	}
	for _, dir := range dirs {
		found, err := apiobject.ReadManifests(filepath.Join(root, dir))
		if err != nil {
			return fmt.Errorf("read %s: %w", dir, err)
		}
		objects = append(objects, found...)
	}

	_, apiPath := c.lab.opts.apiServers()
	for _, r := range []struct {
		used                  bool
		component, kind, name string
	}{
		{c.lab.opts.translates(), "services", "ClusterRole", "kubeveil-veild"},
		{apiPath, "api-path", "Role", "kubeveil-veild-apiserver"},
		{c.lab.opts.judges(), "policy", "ClusterRole", "kubeveil-veild"},
		{c.lab.opts.linked(), "sites", "ClusterRole", "kubeveil-veild"},
	} {
		if !r.used {
			continue
		}
		if err := apiobject.GiveRights(root, r.component, r.kind, r.name, objects); err != nil {
			return err
		}
	}

	if err := c.objects().ApplyAll(ctx, objects); err != nil {
		return err
	}

	// Wait until VeilNodes are served, because nodes read them directly after their start.
	return Until(ctx, 20*time.Second, func() error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath(
			"/apis/kubeveil.io/v1alpha1/veilnodes").DoRaw(ctx)
		return err
	})
}

// registerNode creates the Node object of a node.
func (c *Control) registerNode(ctx context.Context, n *Node) (err error) {
	if n.uid, err = c.objects().RegisterNode(ctx, n.row()); err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	return nil
}

// token returns the credentials of veild on a node: a token of its service account that is bound to
// the Node. A kubelet gets such a token for a pod on its node.
func (c *Control) token(ctx context.Context, n *Node) ([]byte, error) {
	return c.objects().NodeToken(ctx, accountNamespace, accountName, n.Name, n.uid)
}

// kubeconfig returns the kubeconfig of veild on a node. As in a pod, it names the API server, its
// certificate authority and the file of the token.
func (c *Control) kubeconfig() ([]byte, error) {
	server := c.URL()
	if c.lab.opts.byService() {
		server = "https://" + netip.AddrPortFrom(c.serviceAddrs()[0], 443).String()
	}

	return apiserver.Kubeconfig(clientcmdapi.Cluster{Server: server,
		CertificateAuthority: authorityFile}, clientcmdapi.AuthInfo{TokenFile: TokenFile})
}
