package agent

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// checkServiceHost refuses to look for the API server at a service address: those are
// unreachable for this node until a tunnel device exists, and the device waits for the
// table, which comes from the API server. addr is the one that the credentials name, not
// valid when they have a host name: what uses that says what is wrong.
func checkServiceHost(cfg config.Config, addr netip.Addr) error {
	if cfg.Source.Kind != config.SourceKubernetes {
		return nil
	}
	if cfg.ServiceProxy == config.ServiceProxyEBPF && len(cfg.Services.APIServers) > 0 {
		return nil // entry 0 of the table of services leads there before anything else does
	}
	for _, r := range cfg.ServiceRanges {
		if r.Contains(addr.Unmap()) {
			return fmt.Errorf("the API server's address %s is a service's (%s), which this node "+
				"cannot reach before it has the table from there: set source.kubeconfig to a file "+
				"with an address of its own, as the manifests do, or with serviceProxy ebpf "+
				"services.apiServers", addr, r)
		}
	}
	return nil
}
