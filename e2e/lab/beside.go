package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// joinNetwork sets the options that a lab has in common with the lab beside it.
func (o *Options) joinNetwork() {
	b := o.Beside.opts
	o.Nodes, o.Pool = -1, nil
	o.Family, o.UnderlayMTU, o.Offloads = b.Family, b.UnderlayMTU, b.Offloads
}

// joinNetwork makes the lab use the network of the lab beside it. The oracle lets packets to and
// from its API servers pass.
func (l *Lab) joinNetwork() {
	b := l.opts.Beside
	l.bridge, l.Oracle, l.Outside = b.bridge, b.Oracle, b.Outside
	l.Canary, l.EgressCanary, l.numbers = b.Canary, b.EgressCanary, addressplan.BesideNode
	l.Oracle.Update(func(r *leak.Rules) { r.Flows = append(r.Flows, l.serverFlows()...) })
}

// server returns the number of API server i among all on the network.
func (l *Lab) server(i int) int {
	if l.opts.Beside != nil {
		i += l.opts.Beside.opts.APIServers
	}
	return i
}

// serverByte returns the last byte of the underlay addresses of API server i.
func (l *Lab) serverByte(i int) byte { return ControlByte + byte(l.server(i)) }

// serverName returns the name of the host of API server i.
func (l *Lab) serverName(i int) string {
	if n := l.server(i); n > 0 {
		return fmt.Sprintf("control-%d", n+1)
	}
	return "control"
}

// serverFlows returns the flows of the API servers, for the oracle.
func (l *Lab) serverFlows() (flows []leak.Flow) {
	for i := range l.opts.APIServers {
		for _, a := range l.opts.Family.Underlay(l.serverByte(i)) {
			flows = append(flows, leak.Flow{Name: "kube-apiserver", Proto: leak.TCP, Addr: a.Addr(),
				Port: APIPort})
		}
	}
	return flows
}

// InstallSites applies the component manifests/components/sites with its definitions. Nothing runs
// its Deployment. Then only veil-site may write SiteNodes.
func (c *Control) InstallSites(ctx context.Context) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	objects, err := apiobject.ReadSites(root)
	if err != nil {
		return err
	}
	return c.objects().ApplyAll(ctx, objects)
}

// WriteKubeconfig writes a kubeconfig by which nodes reach the first API server, with the token of a
// service account, and returns its path. An empty account means an administrator.
func (c *Control) WriteKubeconfig(ctx context.Context, namespace, account string) (string, error) {
	user := clientcmdapi.AuthInfo{ClientCertificateData: c.Config.CertData,
		ClientKeyData: c.Config.KeyData}
	if account != "" {
		token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("request a token of %s/%s: %w", namespace, account, err)
		}
		user = clientcmdapi.AuthInfo{Token: token.Status.Token}
	}

	text, err := apiserver.Kubeconfig(clientcmdapi.Cluster{Server: c.URL(),
		CertificateAuthorityData: c.Config.CAData}, user)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.lab.Dir, "kubeconfig-"+account)
	return path, os.WriteFile(path, text, 0o600)
}
