package agent

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// serviceHostEnv is where Kubernetes tells a pod the API server's address.
const serviceHostEnv = "KUBERNETES_SERVICE_HOST"

// checkServiceHost refuses to look for the API server at a service address: those are
// unreachable for this node until a tunnel device exists, and the device waits for the
// table, which comes from the API server. host is the value of serviceHostEnv.
func checkServiceHost(cfg config.Config, host string) error {
	if cfg.Source.Kind != config.SourceKubernetes || cfg.Source.Kubeconfig != "" {
		return nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil // A name, or none: what uses it says what is wrong.
	}
	for _, r := range cfg.ServiceRanges {
		if r.Contains(addr.Unmap()) {
			return fmt.Errorf("the API server's address %s is a service's (%s), which this node cannot reach before it has the table from there: set source.kubeconfig to a file with an address of its own, as the manifests do", host, r)
		}
	}
	return nil
}
