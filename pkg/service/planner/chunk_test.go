package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// A chunk is unused when its last run goes, and not before. Runs that move between chunks free the
// old ones.
func TestChunksWithoutRunsAreUnused(t *testing.T) {
	c := newCluster(t, service.Limits{Frontends: 256, BackendSlots: 16 * service.ChunkSlots,
		SourceRanges: 1})
	change := func(name string, endpoints int) []uint32 {
		t.Helper()
		n := service.Name{Namespace: "shop", Name: name}
		c.planner.PutService(service.Service{Name: n, ClusterIPs: addrs("198.18.0." + name),
			Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 0}}})
		slice := service.Slice{Service: n, Name: "1", Ports: []service.SlicePort{{Name: "http",
			Protocol: service.TCP, Port: 8080}}}
		for i := range endpoints {
			slice.Endpoints.Append(service.Endpoint{Ready: true, Addr: netip.AddrFrom4(
				[4]byte{100, byte(i >> 16), byte(i >> 8), byte(i + 1)})})
		}
		c.planner.PutSlice(slice)
		changes := c.planner.Plan()
		c.write(t, changes)
		if len(c.planner.Problems()) > 0 {
			t.Fatal(c.planner.Problems())
		}
		return changes.UnusedChunks
	}

	if got := change("1", 100); len(got) > 0 {
		t.Errorf("a first service leaves chunks %d unused", got)
	}
	if got := change("2", 2*service.ChunkSlots-5); len(got) > 0 {
		t.Errorf("a large service leaves chunks %d unused", got)
	}
	if got := change("2", 2*service.ChunkSlots-6); len(got) != 2 || slices.Contains(got, 0) {
		t.Errorf("a large service that moves leaves chunks %d unused, want two", got)
	}
	if got := change("1", 99); len(got) > 0 {
		t.Errorf("a small service that moves in chunk 0 leaves chunks %d unused", got)
	}
	if got := change("2", 0); len(got) != 2 {
		t.Errorf("a large service that goes leaves chunks %d unused, want two", got)
	}
	if got := change("1", 0); len(got) > 0 || len(c.planner.inUse) != 0 {
		t.Errorf("chunks %d are unused, and slots in use %v", got, c.planner.inUse)
	}
}

// After any changes, the slots in use are those that are not free.
func (c *cluster) checkChunks() error {
	used := uint32(0)
	for _, n := range c.planner.inUse {
		used += n
	}
	free := c.planner.room.Free()
	for _, x := range c.planner.freed {
		free += x.Size()
	}
	if want := c.maps.limits.BackendSlots - service.APISlots - free; used != want && !c.occupied {
		return fmt.Errorf("%d slots are in use, want %d", used, want)
	}
	return nil
}
