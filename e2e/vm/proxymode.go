package vm

import (
	"cmp"

	"github.com/kubeveil/kubeveil/e2e/vm/image"
)

// Modes of kube-proxy.
const (
	ProxyNFTables = image.ProxyNFTables
	ProxyIPTables = image.ProxyIPTables
	ProxyIPVS     = image.ProxyIPVS
)

// ProxyModes lists all modes, the default first.
var ProxyModes = []string{ProxyNFTables, ProxyIPTables, ProxyIPVS}

// proxyMode returns the mode of kube-proxy on the machines. The control plane's host always uses
// ProxyNFTables, because this host's kernel may lack IPVS.
func (o ClusterConfig) proxyMode() string { return cmp.Or(o.ProxyMode, ProxyNFTables) }
