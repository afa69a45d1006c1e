package link

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// The maps of a node of 4 GiB with the default limits and without services take little kernel
// memory.
func TestMapsWithoutServicesAreSmall(t *testing.T) {
	nettest.NeedBPF(t)
	const gib, most = 4, 64
	l := newGuarded(t)
	c := l.config()
	c.Limits, c.Memory = service.DefaultLimits, bpfmaps.MemoryFor(gib<<30)
	l.openWith(t, c, true)
	t.Cleanup(func() { l.Table.Close() })

	pins, err := os.ReadDir(l.dir)
	errtest.Must(t, err)
	sum := uint64(0)
	for _, pin := range pins {
		if !strings.HasPrefix(pin.Name(), bpfmaps.PinPrefix) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, pin.Name()), nil)
		errtest.Must(t, err)
		info, err := m.Info()
		errtest.Must(t, err, m.Close())
		used, _ := info.Memlock()
		t.Logf("%s: %d KiB", pin.Name(), used>>10)
		sum += used
	}
	if sum == 0 || sum > most<<20 {
		t.Errorf("the maps take %d KiB, want at most %d MiB", sum>>10, most)
	}
}
