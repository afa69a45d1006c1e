package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestFrontendsAreReadInOrder holds that a full barrier is between the two look-ups of a frontend:
// an atomic operation that returns the old value. This machine's processor may need none, so the
// test reads the instructions. The compiler chooses where among them the backend is read.
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

			if len(read) == 0 {
				continue
			}

			choosing++
			if len(read)%3 == 1 && read[0] == fronts {
				read = read[1:] // whether a flow of datagrams may go on, which one field says
			}

			for want := []string{fronts, barrier,
				fronts}; len(read) > 0; read = read[min(len(read), len(want)):] {
				for i, what := range want {
					if i >= len(read) || read[i] != what {
						t.Errorf("%s reads %v, want %v", name, read, want)
						break
					}
				}
			}
		}
	}

	if choosing == 0 {
		t.Error("no program chooses a backend")
	}
}
