package frozen

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// TestPinnedNames compares the names of BPF maps and programs with a golden file. The guard and the
// service table use them as names of pins, and an upgrade adopts the objects that are pinned there.
func TestPinnedNames(t *testing.T) {
	var b strings.Builder
	for _, object := range []struct {
		name string
		load func() (*ebpf.CollectionSpec, error)
	}{
		{"guard ingress", bpf.LoadGuardIngress},
		{"guard egress", bpf.LoadGuardEgress},
		{"services at links", bpf.LoadServicePacket},
		{"services at sockets", bpf.LoadServiceSocket},
	} {
		spec, err := object.load()
		errtest.Must(t, err)
		fmt.Fprintf(&b, "%s\n", object.name)
		for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
			m := spec.Maps[name]
			fmt.Fprintf(&b, "  map %s %s key %d value %d", name, m.Type, m.KeySize, m.ValueSize)
			if in := m.InnerMap; in != nil {
				fmt.Fprintf(&b, " of %s key %d value %d", in.Type, in.KeySize, in.ValueSize)
			}
			b.WriteByte('\n')
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
			p := spec.Programs[name]
			fmt.Fprintf(&b, "  program %s %s\n", name, p.Type)
		}
	}

	golden.Check(t, "pins.txt", b.String())
}
