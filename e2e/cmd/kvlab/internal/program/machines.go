package program

import (
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// MaxMachines is how many virtual machines a command makes at most. Each takes 2 GiB of memory, and
// all of a processor while it boots.
const MaxMachines = 4

// CheckMachines returns an error that describes what is wrong with a number of virtual machines.
func CheckMachines(n int) error {
	if n < 1 || n > MaxMachines {
		return fmt.Errorf("write 1 to %d machines, of which each takes 2 GiB of memory",
			MaxMachines)
	}
	return nil
}

// ServiceProxyUsage is the usage of a flag --service-proxy for machines.
const ServiceProxyUsage = "who translates services: `kind` " + config.ServiceProxyNone +
	" (kube-proxy) or " + config.ServiceProxyEBPF + " (Kubeveil; no node has a kube-proxy)"

// ProxyModeUsage is the usage of a flag --proxy-mode for machines.
const ProxyModeUsage = "`mode` of kube-proxy: " + vm.ProxyNFTables + ", " + vm.ProxyIPTables +
	" or " + vm.ProxyIPVS + "; the control plane's host, which takes no pods, has " +
	vm.ProxyNFTables + " (default: " + vm.ProxyNFTables + ")"

// HostRoutingUsage is the usage of a flag --host-routing for machines.
const HostRoutingUsage = "who brings packets to pods of a node: `kind` " +
	config.HostRoutingKernel + " or, with --service-proxy " + config.ServiceProxyEBPF + ", " +
	config.HostRoutingEBPF + " or " + config.HostRoutingAuto

// PolicyUsage is the usage of a flag --policy for machines.
const PolicyUsage = "which network policies Kubeveil enforces: `kind` " + config.PolicyNone +
	" or " + config.PolicyKubernetes
