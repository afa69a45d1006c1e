package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// tunnelPort is the port of tunnels in the tests.
const tunnelPort = 30101

// podClientsMax is the size of the map of pod clients in the tests.
const podClientsMax = 64

// packets returns the services' programs for packets, with new maps.
func packets(t testing.TB) *ebpf.Collection { return packetsWith(t, 1<<14) }

// packetsWith is like packets, with flow tables of that size.
func packetsWith(t testing.TB, flows uint32) *ebpf.Collection {
	t.Helper()
	nettest.NeedBPF(t)
	errtest.Must(t, rlimit.RemoveMemlock())
	spec, err := LoadServicePacket()
	errtest.Must(t, err)

	set := map[string]uint32{"pod_mark": abi.PodMark, "tunnel_mark": abi.TunnelMark,
		"service_mark": abi.ServiceMark, "probe_port": abi.ProbePort,
		"tunnel_port": tunnelPort, "flow_quota": flows / 128}
	for name, v := range spec.Variables {
		errtest.Must(t, v.Set(set[name]))
	}

	for _, name := range append(flowMaps, "service_quotas") {
		spec.Maps[name].MaxEntries = flows
	}
	spec.Maps["service_callers"].MaxEntries = podClientsMax
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load: %+v", err)
	}

	t.Cleanup(coll.Close)
	fill(t, coll.Maps)
	linksOf.Store(coll, newPodLinks(t))
	t.Cleanup(func() { linksOf.Delete(coll) })
	return coll
}
