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

// CheckServiceProxy returns an error if kind is not a service proxy.
func CheckServiceProxy(kind string) error {
	if kind != config.ServiceProxyNone && kind != config.ServiceProxyEBPF {
		return fmt.Errorf("write %s (kube-proxy) or %s", config.ServiceProxyNone,
			config.ServiceProxyEBPF)
	}
	return nil
}

// ProxyModeUsage is the usage of a flag --proxy-mode for machines.
const ProxyModeUsage = "`mode` of kube-proxy: " + vm.ProxyNFTables + ", " + vm.ProxyIPTables +
	" or " + vm.ProxyIPVS + "; the control plane's host, which takes no pods, has " +
	vm.ProxyNFTables + " (default: " + vm.ProxyNFTables + ")"

// CheckProxyMode returns an error if kube-proxy has no such mode, or if there is none beside
// serviceProxy. Empty means the default. The error names what to write instead.
func CheckProxyMode(mode, serviceProxy string) error {
	return vm.CheckProxyMode(mode, serviceProxy)
}

// HostRoutingUsage is the usage of a flag --host-routing for machines.
const HostRoutingUsage = "who brings packets to pods of a node: `kind` " +
	config.HostRoutingKernel + " or, with --service-proxy " + config.ServiceProxyEBPF + ", " +
	config.HostRoutingEBPF

// CheckHostRouting returns an error if kind is not a host routing, or needs another service proxy
// than proxy. The error names what to write instead.
func CheckHostRouting(kind, proxy string) error {
	switch kind {
	case config.HostRoutingKernel:
		return nil
	case config.HostRoutingEBPF:
		if proxy != config.ServiceProxyEBPF {
			return fmt.Errorf("write --service-proxy %s, too", config.ServiceProxyEBPF)
		}
		return nil
	}
	return fmt.Errorf("write %s or %s", config.HostRoutingKernel, config.HostRoutingEBPF)
}

// PolicyUsage is the usage of a flag --policy for machines.
const PolicyUsage = "which network policies Kubeveil enforces: `kind` " + config.PolicyNone +
	" or " + config.PolicyKubernetes

// CheckPolicy returns an error if kind is not a kind of policies.
func CheckPolicy(kind string) error {
	if kind != config.PolicyNone && kind != config.PolicyKubernetes {
		return fmt.Errorf("write %s or %s", config.PolicyNone, config.PolicyKubernetes)
	}
	return nil
}
