package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestFrontendsAreReadInOrder checks that a full barrier, an atomic operation that returns the old
// value, is between the two look-ups of a frontend. This machine's processor may not need a
// barrier, so the test follows the instructions.
func TestFrontendsAreReadInOrder(t *testing.T) {
	reading := 0
	for _, load := range []func() (*ebpf.CollectionSpec, error){LoadServiceSocket,
		LoadServicePacket} {
		spec, err := load()
		errtest.Must(t, err)

		for name, prog := range spec.Programs {
			barriers := expectReadsInOrder(t, name, prog.Instructions)
			lookUps := 0
			for i := range prog.Instructions {
				if doneBy(&prog.Instructions[i]) == lookUp {
					lookUps++
				}
			}
			if lookUps > 0 {
				reading++
			}
			if barriers == 0 && lookUps > 0 {
				t.Errorf("%s looks frontends up %d times, want a barrier", name, lookUps)
			}
		}
	}

	if reading == 0 {
		t.Error("no program reads frontends")
	}
}

// readStep is a step of reading a frontend; a set of steps has a bit for each.
type readStep uint8

const (
	start readStep = 1 << iota // of the function
	lookUp
	barrier
)

// doneBy returns the step that an instruction is, or 0.
func doneBy(ins *asm.Instruction) readStep {
	switch {
	case ins.OpCode.AtomicOp() == asm.Xchg:
		return barrier
	case ins.IsLoadFromMap() && ins.Reference() == "service_fronts":
		return lookUp
	}
	return 0
}

// expectReadsInOrder follows all paths of a program's functions. On each of them, the last step
// before a barrier and the next one after it must be a look-up. It returns the number of barriers.
func expectReadsInOrder(t *testing.T, name string, insns asm.Instructions) (barriers int) {
	t.Helper()
	last := lastSteps(insns)
	for i := range insns {
		switch {
		case doneBy(&insns[i]) == barrier:
			barriers++
			if last[i] != lookUp {
				t.Errorf("%s, instruction %d: a barrier follows steps %b, want a look-up alone",
					name, i, last[i])
			}
		case insns[i].OpCode.JumpOp() == asm.Exit && last[i]&barrier != 0:
			t.Errorf("%s, instruction %d: a function ends without a look-up after its barrier",
				name, i)
		}
	}
	return barriers
}

// lastSteps returns the set of the possible last steps before each instruction, within its function.
func lastSteps(insns asm.Instructions) []readStep {
	at := make(map[asm.RawInstructionOffset]int)
	offsets := make([]asm.RawInstructionOffset, len(insns))
	functions := map[string]bool{}
	for it := insns.Iterate(); it.Next(); {
		at[it.Offset], offsets[it.Index] = it.Index, it.Offset
		if it.Ins.IsFunctionCall() {
			functions[it.Ins.Reference()] = true
		}
	}

	last := make([]readStep, len(insns))
	var changed []int
	add := func(i int, s readStep) {
		if last[i]|s != last[i] {
			last[i] |= s
			changed = append(changed, i)
		}
	}
	for i := range insns {
		if i == 0 || functions[insns[i].Symbol()] {
			add(i, start)
		}
	}

	for len(changed) > 0 {
		i := changed[len(changed)-1]
		changed = changed[:len(changed)-1]
		out := last[i]
		if s := doneBy(&insns[i]); s != 0 {
			out = s
		}

		op := insns[i].OpCode.JumpOp()
		if op != asm.InvalidJumpOp && op != asm.Call && op != asm.Exit {
			add(at[offsets[i]+1+asm.RawInstructionOffset(insns[i].Offset)], out)
		}
		if op != asm.Ja && op != asm.Exit {
			add(i+1, out)
		}
	}
	return last
}
