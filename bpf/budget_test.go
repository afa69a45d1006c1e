package bpf

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The limits of the verifier: BPF_COMPLEXITY_LIMIT_INSNS (include/linux/bpf.h) and MAX_BPF_STACK
// (include/linux/filter.h).
const (
	verifierInstructions = 1_000_000
	verifierStack        = 512
)

// budget is the part of the verifier's limits that a program may use on each tested kernel.
// instructions counts the verified instructions of all branches and functions. stack is the bytes
// of the deepest chain of calls. Verifiers of different releases count differently, so instructions
// leaves room for twice as many. All of them count the same bytes of stack.
type budget struct {
	instructions uint32
	stack        int
}

var budgets = map[string]budget{
	"guard_ingress":    {10_000, 320},
	"guard_ingress_l3": {10_000, 320},
	"guard_egress":     {10_000, 320},
	"guard_egress_l3":  {10_000, 320},

	"service_in":      {50_000, 480},
	"service_in_l3":   {50_000, 480},
	"service_out":     {12_000, 320},
	"service_out_l3":  {12_000, 320},
	"service_pod_in":  {50_000, 480},
	"service_pod_out": {8_000, 320},
	"service_tun_in":  {50_000, 480},
	"service_tun_out": {8_000, 320},

	"service_connect4":     {40_000, 416},
	"service_connect6":     {40_000, 416},
	"service_sendmsg4":     {40_000, 416},
	"service_sendmsg6":     {40_000, 416},
	"service_recvmsg4":     {200, 160},
	"service_recvmsg6":     {200, 160},
	"service_getpeername4": {200, 160},
	"service_getpeername6": {200, 160},
	"service_pair":         {200, 160},
}

func TestProgramsKeepTheirBudgets(t *testing.T) {
	nettest.NeedBPF(t)
	errtest.Must(t, rlimit.RemoveMemlock())

	met := make(map[string]bool)
	for _, load := range []func() (*ebpf.CollectionSpec, error){
		LoadGuardIngress, LoadGuardEgress, LoadServicePacket, LoadServiceSocket,
	} {
		spec, err := load()
		errtest.Must(t, err)
		// Turn on every setting: the verifier skips code that a setting makes unreachable.
		for name, v := range spec.Variables {
			on := make([]byte, v.Size())
			on[0] = 1
			if err := v.Set(on); err != nil {
				t.Fatalf("set %s: %v", name, err)
			}
		}

		coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
			Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats},
		})
		if err != nil {
			t.Fatalf("load: %+v", err)
		}
		defer coll.Close()

		for name, prog := range coll.Programs {
			met[name] = true
			t.Run(name, func(t *testing.T) {
				expectBudget(t, name, prog, spec.Programs[name].Instructions)
			})
		}
	}

	for name := range budgets {
		if !met[name] {
			t.Errorf("there is no program %s", name)
		}
	}
}

func expectBudget(t *testing.T, name string, prog *ebpf.Program, insns asm.Instructions) {
	limit, ok := budgets[name]
	if !ok {
		t.Fatal("the program has no budget")
	}
	if limit.instructions > verifierInstructions/2 || limit.stack > verifierStack {
		t.Errorf("its budget %+v leaves no room", limit)
	}
	info, err := prog.Info()
	errtest.Must(t, err)
	verified, ok := info.VerifiedInstructions()
	if !ok {
		t.Fatal("the kernel does not say how many instructions it verified")
	}
	stack, chain := deepest(t, insns, prog.VerifierLog)
	t.Logf("%d instructions verified, %d bytes of stack in %s", verified, stack,
		strings.Join(chain, " > "))
	if verified > limit.instructions {
		t.Errorf("%d instructions are verified, its budget is %d", verified, limit.instructions)
	}
	if stack > limit.stack {
		t.Errorf("%d bytes of stack in %v, its budget is %d", stack, chain, limit.stack)
	}
}

var stackDepth = regexp.MustCompile(`stack depth ([0-9+]+)`)

// function is a function of a program, with its own bytes of stack and the functions that it calls.
type function struct {
	stack int
	calls []string
}

// deepest returns the stack of the deepest chain of calls and the functions of that chain. It adds
// stacks up as the verifier does (check_max_stack_depth in kernel/bpf/verifier.c). The verifier's
// log has the stack of each function, in the order of the instructions.
func deepest(t *testing.T, insns asm.Instructions, log string) (stack int, chain []string) {
	t.Helper()
	called := make(map[string]bool)
	for _, ins := range insns {
		if ins.IsFunctionCall() {
			called[ins.Reference()] = true
		}
	}

	functions := make(map[string]*function)
	var order []string
	for i, ins := range insns {
		if i == 0 || called[ins.Symbol()] {
			order = append(order, ins.Symbol())
			functions[ins.Symbol()] = &function{}
		}
		if ins.IsFunctionCall() {
			f := functions[order[len(order)-1]]
			f.calls = append(f.calls, ins.Reference())
		}
	}

	found := stackDepth.FindStringSubmatch(log)
	if found == nil {
		t.Fatalf("the verifier does not tell of the stack: %s", log)
	}
	depths := strings.Split(found[1], "+")
	if len(depths) != len(order) {
		t.Fatalf("the verifier tells of the stack of %d functions, the program has %v", len(depths),
			order)
	}

	for i, depth := range depths {
		n, err := strconv.Atoi(depth)
		errtest.Must(t, err)
		functions[order[i]].stack = n
	}

	return deepestFrom(functions, order[0])
}

func deepestFrom(functions map[string]*function, name string) (stack int, chain []string) {
	const round = 32
	f := functions[name]
	for _, callee := range slices.Compact(slices.Sorted(slices.Values(f.calls))) {
		if n, more := deepestFrom(functions, callee); n > stack {
			stack, chain = n, more
		}
	}
	own := (max(f.stack, 1) + round - 1) / round * round
	return stack + own, append([]string{name}, chain...)
}
