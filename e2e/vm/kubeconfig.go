package vm

import (
	"context"
	"fmt"
	"net/netip"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Kubeconfig returns the path of a kubeconfig of the cluster's administrator that works outside of
// the lab's namespaces, on this machine and while the cluster runs.
func (c *Cluster) Kubeconfig() string { return c.file("kubeconfig") }

// forwardAPI forwards a port of loopback to the API server, and writes the kubeconfig that names
// the port.
func (c *Cluster) forwardAPI(ctx context.Context) error {
	config, err := clientcmd.LoadFromFile(c.Control.Path(superAdmin))
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	api := netip.AddrPortFrom(c.apiAddr(), lab.APIPort)
	if c.forward, err = c.Control.Forward(ctx, api, c.log); err != nil {
		return fmt.Errorf("forward the API server: %w", err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + c.forward.Addr().String()
		cluster.TLSServerName = c.apiAddr().String()
	}
	return clientcmd.WriteToFile(*config, c.Kubeconfig())
}
