package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/lab/gate"
	"github.com/kubeveil/kubeveil/e2e/lab/kubelet"
	"github.com/kubeveil/kubeveil/e2e/lab/linked"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// Programs that clusters of the lab have for these tests only.
const managerProgram, dnsProgram = "kube-controller-manager", "coredns"

// controllers are those that the tests need.
const controllers = "deployment-controller,replicaset-controller,statefulset-controller," +
	"endpointslice-controller,serviceaccount-controller,namespace-controller," +
	"garbage-collector-controller"

// onLab is onPair on nodes of the lab. Each cluster has Kubernetes' API server and controllers,
// CoreDNS, and a stand-in for the kubelet, which runs pods of the same images.
func onLab(ctx context.Context, a arguments, root string,
	o conformance.RunConfig) (report *conformance.Report, platform string, err error) {
	archive := filepath.Join(root, "out/images/conformance-sites.tar")
	for _, path := range []string{archive, filepath.Join(root, "out/bin", managerProgram),
		filepath.Join(root, "out/bin", dnsProgram)} {
		if _, err := os.Stat(path); err != nil {
			return nil, "", fmt.Errorf("%w: run `make conformance-sites-lab` instead", err)
		}
	}
	p, err := linked.New(ctx, linked.Options{Imports: []string{cluster.AllNamespaces},
		VeildConfig: map[string]any{"serviceProxy": config.ServiceProxyEBPF,
			"services": map[string]any{"hostRouting": a.hostRouting}},
		ServerFlags: kubelet.ServerFlags, Dir: filepath.Join(a.out, "lab"), Log: o.Log})
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, end(p, o.Log, report)) }()

	both := clientcmdapi.NewConfig()
	for _, c := range []*linked.Cluster{p.A, p.B} {
		stop, err := populate(ctx, c, archive, o)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return nil, "", fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		g, err := gate.New(c.Control.Config)
		if err != nil {
			return nil, "", err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		both.Clusters[c.Name] = &clientcmdapi.Cluster{Server: g.URL(),
			CertificateAuthorityData: c.Control.Config.CAData}
		both.AuthInfos[c.Name] = &clientcmdapi.AuthInfo{
			ClientCertificateData: c.Control.Config.CertData,
			ClientKeyData:         c.Control.Config.KeyData}
		both.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
	}
	both.CurrentContext = p.A.Name
	o.Kubeconfig = filepath.Join(a.out, "kubeconfig")
	if err := clientcmd.WriteToFile(*both, o.Kubeconfig); err != nil {
		return nil, "", err
	}
	report, err = conformance.Run(ctx, o)
	return report, bench.Namespaces, err
}

// populate starts the controllers, DNS and the kubelet of a cluster. stop ends the kubelet, also
// after an error.
func populate(ctx context.Context, c *linked.Cluster, archive string,
	o conformance.RunConfig) (stop func() error, err error) {
	stop = func() error { return nil }
	admin, err := c.Control.WriteKubeconfig(ctx, metav1.NamespaceSystem, "")
	if err != nil {
		return stop, err
	}
	// The veil-site of the lab is a process of a node.
	if err := c.Control.Client.AppsV1().Deployments(metav1.NamespaceSystem).Delete(ctx, "veil-site",
		metav1.DeleteOptions{}); err != nil {
		return stop, err
	}
	if _, err := c.Control.Host().Start(ctx, c.Program(managerProgram), "--kubeconfig="+admin,
		"--controllers="+controllers, "--leader-elect=false", "--bind-address=127.0.0.1"); err != nil {
		return stop, err
	}
	corefile := filepath.Join(c.Dir, "Corefile")
	if err := os.WriteFile(corefile, fmt.Appendf(nil, `.:53 {
    errors
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        multicluster clusterset.local
    }
}
`, admin), 0o644); err != nil {
		return stop, err
	}
	node := c.Nodes()[0]
	if _, err := node.Start(ctx, c.Program(dnsProgram), "-conf", corefile); err != nil {
		return stop, err
	}

	dir, err := os.MkdirTemp("", "kubeveil-images-")
	if err != nil {
		return stop, err
	}
	k, err := kubelet.Start(ctx, c.Lab, kubelet.Config{Node: node, Client: c.Control.Client,
		Images: archive, Dir: dir, DNS: node.Addrs, Log: o.Log})
	if err != nil {
		return stop, errors.Join(err, os.RemoveAll(dir))
	}
	return func() error { return errors.Join(k.Close(), os.RemoveAll(dir)) }, nil
}
