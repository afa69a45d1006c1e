package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// hostPorts returns the ports of TCP and UDP that the plugin portmap will open for the pod. Nil
// means that they are unknown, because the configuration does not ask the runtime for them.
func (c *netConf) hostPorts() ([]pod.HostPort, error) {
	var asked map[string]bool
	if json.Unmarshal(c.Capabilities, &asked) != nil || !asked[abi.PortMappings] {
		return nil, nil
	}

	var given struct {
		PortMappings []struct {
			HostPort, ContainerPort int
			Protocol, HostIP        string
		} `json:"portMappings"`
	}
	if len(c.RuntimeConfig) > 0 {
		if err := json.Unmarshal(c.RuntimeConfig, &given); err != nil {
			return nil, fmt.Errorf("read the pod's host ports: %w", err)
		}
	}

	ports := []pod.HostPort{}
	for _, m := range given.PortMappings {
		protocol := strings.ToLower(m.Protocol)
		if protocol != "tcp" && protocol != "udp" {
			continue
		}
		if min(m.HostPort, m.ContainerPort) < 1 || max(m.HostPort, m.ContainerPort) > math.MaxUint16 {
			return nil, fmt.Errorf("host port %d of container port %d: write numbers from 1 to %d",
				m.HostPort, m.ContainerPort, math.MaxUint16)
		}
		p := pod.HostPort{Port: uint16(m.HostPort), PodPort: uint16(m.ContainerPort),
			UDP: protocol == "udp"}
		if m.HostIP != "" {
			a, err := netip.ParseAddr(m.HostIP)
			if err != nil {
				return nil, fmt.Errorf("host port %d: hostIP: %w", m.HostPort, err)
			}
			if !a.IsUnspecified() {
				p.Addr = a.Unmap()
			}
		}
		ports = append(ports, p)
	}
	return ports, nil
}
