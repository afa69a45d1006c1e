package program

import (
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// MaxMachines is how many virtual machines a command makes at most. Each takes 2 GiB of memory, and
// all of a processor while it boots.
const MaxMachines = 4

// CheckMachines says what is wrong with a number of virtual machines, nil when nothing is.
func CheckMachines(n int) error {
	if n < 1 || n > MaxMachines {
		return fmt.Errorf("write 1 to %d machines, of which each takes 2 GiB of memory",
			MaxMachines)
	}
	return nil
}

// ServiceProxyUsage is that of a flag -service-proxy for machines.
const ServiceProxyUsage = "who translates services: `kind` " + config.ServiceProxyNone +
	" (kube-proxy) or " + config.ServiceProxyEBPF + " (Kubeveil; no node has a kube-proxy)"

// CheckServiceProxy says what is wrong with who is to translate services, nil when nothing is.
func CheckServiceProxy(kind string) error {
	if kind != config.ServiceProxyNone && kind != config.ServiceProxyEBPF {
		return fmt.Errorf("write %s (kube-proxy) or %s", config.ServiceProxyNone,
			config.ServiceProxyEBPF)
	}
	return nil
}

// ProxyModeUsage is that of a flag -proxy-mode for machines.
const ProxyModeUsage = "`mode` of kube-proxy: " + vm.ProxyNFTables + ", " + vm.ProxyIPTables +
	" or " + vm.ProxyIPVS + "; the control plane's host, which takes no pods, has " +
	vm.ProxyNFTables + " (default: " + vm.ProxyNFTables + ")"

// CheckProxyMode returns an error if kube-proxy has no such mode, or if there is none beside
// serviceProxy. Empty is the default. The error says what to write instead.
func CheckProxyMode(mode, serviceProxy string) error {
	return vm.CheckProxyMode(mode, serviceProxy)
}

// HostRoutingUsage is that of a flag -host-routing for machines.
const HostRoutingUsage = "who brings packets to pods of a node: `kind` " +
	config.HostRoutingKernel + " or, with -service-proxy " + config.ServiceProxyEBPF + ", " +
	config.HostRoutingEBPF

// CheckHostRouting returns an error if kind is no host routing, or needs another service proxy than
// proxy. The error says what to write instead.
func CheckHostRouting(kind, proxy string) error {
	switch kind {
	case config.HostRoutingKernel:
		return nil
	case config.HostRoutingEBPF:
		if proxy != config.ServiceProxyEBPF {
			return fmt.Errorf("write -service-proxy %s, too", config.ServiceProxyEBPF)
		}
		return nil
	}
	return fmt.Errorf("write %s or %s", config.HostRoutingKernel, config.HostRoutingEBPF)
}

// PolicyUsage is that of a flag -policy for machines.
const PolicyUsage = "which network policies Kubeveil enforces: `kind` " + config.PolicyNone +
	" or " + config.PolicyKubernetes

// CheckPolicy says what is wrong with which policies are to be enforced, nil when nothing is.
func CheckPolicy(kind string) error {
	if kind != config.PolicyNone && kind != config.PolicyKubernetes {
		return fmt.Errorf("write %s or %s", config.PolicyNone, config.PolicyKubernetes)
	}
	return nil
}
