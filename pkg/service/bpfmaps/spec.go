package bpfmaps

import (
	"fmt"
	"log/slog"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// specs returns the compiled programs for sockets. The features of the kernel are their settings.
// The spec has all maps of the table.
func specs(f probe.Features) ([]*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadServiceSocket()
	if err != nil {
		return nil, err
	}
	setRetval := uint8(0)
	if f.SetRetval {
		setRetval = 1
	}
	host, err := kfeature.NetnsCookie()
	if err != nil {
		return nil, fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	if err := bpfobj.Set(spec, map[string]any{"has_set_retval": setRetval, "host_netns": host,
		"probe_mark": uint32(abi.ProbeMark)}); err != nil {
		return nil, err
	}
	return []*ebpf.CollectionSpec{spec}, nil
}

// normalPortsEnd is where the kernel's default of net.ipv4.ip_local_port_range begins. fewestPorts
// are how many the programs need below it, and lowestPort is their first (SNAT_PORT_MIN).
const (
	normalPortsEnd = 32768
	fewestPorts    = 4096
	lowestPort     = 1024
)

// nodePortsEnd returns the port below which programs choose ports of the node's address for clients
// outside: where the ports begin that the kernel gives to sockets of the node. If that leaves too
// few, it returns the default of the kernel.
func nodePortsEnd(log *slog.Logger) uint32 {
	const setting = "ipv4/ip_local_port_range"
	var low, high uint32
	text, err := sysctl.Read(setting)
	if err == nil {
		_, err = fmt.Sscan(text, &low, &high)
	}
	if err == nil && low >= lowestPort+fewestPorts {
		return min(low, normalPortsEnd)
	}
	log.Warn("connections of clients outside and of this node to a backend outside may get the "+
		"same port; let net.ipv4.ip_local_port_range begin at 32768", "range", text, "error", err)
	return normalPortsEnd
}

// packetSpec returns the compiled programs for links, with their settings. m has the sizes of the
// flow tables.
func packetSpec(tunnelPort uint16, m Memory, log *slog.Logger) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadServicePacket()
	if err != nil {
		return nil, err
	}
	return spec, bpfobj.Set(spec, map[string]any{
		"pod_mark":       uint32(abi.PodMark),
		"tunnel_mark":    uint32(abi.TunnelMark),
		"service_mark":   uint32(abi.ServiceMark),
		"probe_port":     uint32(abi.ProbePort),
		"tunnel_port":    uint32(tunnelPort),
		"pod_table":      uint32(abi.TablePod),
		"node_ports_end": nodePortsEnd(log),
		"flow_quota":     m.quota(),
	})
}

// quotaShare is the number of entries for established connections for each flow of a client's
// quota. A flow takes four entries at most.
const quotaShare = 64

// quota returns the number of flows that one client in the cluster may have: a share of MapTCP, and
// less if MapOpening or MapUDP is smaller than the defaults beside it.
func (m Memory) quota() uint32 {
	room := min(uint64(m.TCP), 4*uint64(m.Opening), 2*uint64(m.UDP))
	return uint32(min(max(room/quotaShare, 1), 1<<16))
}
