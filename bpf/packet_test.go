package bpf

import (
	"maps"
	"strings"
	"sync"
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

// specsOf has the spec of each *ebpf.Collection of packets.
var specsOf sync.Map

// packets returns new maps of the services' programs for packets. Function program loads the
// programs, because the verifier takes most of the time of these tests, and most use few of them.
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
	onlyMaps := *spec
	onlyMaps.Programs = nil
	coll, err := ebpf.NewCollection(&onlyMaps)
	if err != nil {
		t.Fatalf("load: %+v", err)
	}

	t.Cleanup(coll.Close)
	specsOf.Store(coll, spec)
	t.Cleanup(func() { specsOf.Delete(coll) })
	fill(t, coll.Maps)
	linksOf.Store(coll, newPodLinks(t))
	t.Cleanup(func() { linksOf.Delete(coll) })
	return coll
}

// specOf returns the spec of a collection of packets.
func specOf(t testing.TB, coll *ebpf.Collection) *ebpf.CollectionSpec {
	t.Helper()
	spec, ok := specsOf.Load(coll)
	if !ok {
		t.Fatal("the collection is not of packets")
	}
	return spec.(*ebpf.CollectionSpec)
}

// program returns a program of a collection of packets. It loads the program at the first call,
// which must not run beside another one.
func program(t testing.TB, coll *ebpf.Collection, name string) *ebpf.Program {
	t.Helper()
	if prog := coll.Programs[name]; prog != nil {
		return prog
	}

	spec := *specOf(t, coll)
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	shared := maps.Clone(coll.Maps)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool {
		return strings.HasPrefix(name, ".") // settings of the program
	})
	one, err := ebpf.NewCollectionWithOptions(&spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		t.Fatalf("load %s: %+v", name, err)
	}
	defer one.Close()
	coll.Programs[name] = one.DetachProgram(name)
	return coll.Programs[name]
}
