package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestFrontendsAreReadInOrder checks that a full barrier, an atomic operation that returns the old
// value, is between the two look-ups of a frontend. This machine's processor may not need a
// barrier, so the test reads the instructions. The compiler chooses where the backend is read, and
// may repeat the first look-up at the end of the retry loop. A program at connect first looks up a
// frontend with scope Host.
func TestFrontendsAreReadInOrder(t *testing.T) {
	const fronts, barrier = "service_fronts", "barrier"
	choosing := 0
	for _, load := range []func() (*ebpf.CollectionSpec, error){LoadServiceSocket,
		LoadServicePacket} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}

		for name, prog := range spec.Programs {
			var read []string
			for i := range prog.Instructions {
				ins := &prog.Instructions[i]
				switch {
				case ins.OpCode.AtomicOp() == asm.Xchg:
					read = append(read, barrier)
				case ins.IsLoadFromMap() && ins.Reference() == fronts:
					read = append(read, fronts)
				}
			}

			// One look-up decides whether a flow of datagrams may go on, and compares nothing.
			if len(read) < 2 {
				continue
			}

			choosing++
			if !slices.Contains(read, barrier) {
				t.Errorf("%s reads %v, want a barrier", name, read)
			}
			for i, what := range read {
				if what == barrier && (i == 0 || i == len(read)-1 || read[i-1] != fronts ||
					read[i+1] != fronts) {
					t.Errorf("%s reads %v, want a look-up before and after each barrier", name, read)
				}
			}
		}
	}

	if choosing == 0 {
		t.Error("no program chooses a backend")
	}
}
