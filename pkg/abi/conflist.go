package abi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// PluginType is the name of our plugin's program in the CNI configuration.
const PluginType = "veil"

// PortMappings is the capability by which plugins get the host ports of a pod.
const PortMappings = "portMappings"

// cniVersion is the version of the CNI configuration; containerd 1.6 reads it. cniVersions are all
// versions that the plugin supports, for runtimes that choose one (CNI specification 1.1.0, section
// 1).
const cniVersion = "1.0.0"

var cniVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// NetConf is our plugin's entry in the CNI configuration, without the keys of all
// plugins (cniVersion, name), which the runtime adds.
type NetConf struct {
	Type string `json:"type"`
	// MTU is the MTU of a pod's interface, bytes.
	MTU int `json:"mtu"`
	// IPAM is the configuration that the plugin passes to host-local.
	IPAM IPAM `json:"ipam"`
	// Capabilities are the arguments that the plugin gets from the runtime. It records the ports
	// that the plugin portmap opens.
	Capabilities map[string]bool `json:"capabilities"`
}

// IPAM is the configuration of host-local: one range set per family.
type IPAM struct {
	Type    string    `json:"type"`
	DataDir string    `json:"dataDir"`
	Ranges  [][]Range `json:"ranges"`
}

// Range is a range of addresses of host-local.
type Range struct {
	Subnet netip.Prefix `json:"subnet"`
}

// ConflistParams holds the parameters of a CNI configuration.
type ConflistParams struct {
	// MTU is the pods' MTU in bytes.
	MTU int
	// PodPrefixes are the pod prefixes of this node.
	PodPrefixes []netip.Prefix
	// IPAMDir is the data directory of host-local. An empty string means the constant IPAMDir.
	IPAMDir string
	// Portmap and Bandwidth chain the reference plugins of these names.
	Portmap, Bandwidth bool
}

type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []any    `json:"plugins"`
}

type chained struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	SNAT         bool            `json:"snat,omitempty"`
}

// Conflist returns the CNI configuration. The same parameters lead to the same bytes. It returns an
// error if there is no pod prefix, or if the MTU is too small.
func Conflist(p ConflistParams) ([]byte, error) {
	if len(p.PodPrefixes) == 0 {
		return nil, errors.New("CNI configuration: the node has no pod prefix; does the " +
			"controller manager run with --allocate-node-cidrs?")
	}

	least := cluster.MinMTU4
	ipam := IPAM{Type: "host-local", DataDir: p.IPAMDir}
	if ipam.DataDir == "" {
		ipam.DataDir = IPAMDir
	}

	var sets [2][]Range // IPv4 first: pods get addresses in the order of the families
	for _, prefix := range slices.SortedFunc(slices.Values(p.PodPrefixes), netip.Prefix.Compare) {
		family := 0
		if !prefix.Addr().Is4() {
			family, least = 1, MinPodMTU6
		}
		if prefix.Bits() > prefix.Addr().BitLen()-2 {
			return nil, fmt.Errorf("CNI configuration: host-local cannot allocate from the pod "+
				"prefix %s; give the node a larger one", prefix)
		}
		sets[family] = append(sets[family], Range{Subnet: prefix})
	}

	for _, set := range sets {
		if len(set) > 0 {
			ipam.Ranges = append(ipam.Ranges, set)
		}
	}

	if p.MTU < least {
		return nil, fmt.Errorf("CNI configuration: a pod MTU of %d is below %d", p.MTU, least)
	}

	list := conflist{CNIVersion: cniVersion, CNIVersions: cniVersions, Name: NetworkName}
	list.Plugins = append(list.Plugins, NetConf{Type: PluginType, MTU: p.MTU, IPAM: ipam,
		Capabilities: map[string]bool{PortMappings: true}})
	if p.Portmap {
		list.Plugins = append(list.Plugins,
			chained{Type: "portmap", Capabilities: map[string]bool{PortMappings: true},
				SNAT: true})
	}
	if p.Bandwidth {
		list.Plugins = append(list.Plugins,
			chained{Type: "bandwidth", Capabilities: map[string]bool{"bandwidth": true}})
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("CNI configuration: %w", err)
	}

	return append(b, '\n'), nil
}
