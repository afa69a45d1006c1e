package network_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// mprogMax is how many programs a hook of tcx can have (bpf_mprog_max, include/linux/bpf_mprog.h).
const mprogMax = 63

// crowd attaches so many programs at egress of a link that there is no room for the guard. It needs
// a kernel with tcx, where veild uses no other hook. The tests of pkg/guard cover clsact.
func crowd(n *lab.Node, name string) error {
	return n.Do(func() error {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		for i := range mprogMax {
			next := asm.Instructions{
				asm.Mov.Imm(asm.R0, -1), asm.Mov.Imm(asm.R1, int32(i)), asm.Return(),
			}
			prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Name: "crowd", Type: ebpf.SchedCLS, License: "GPL", Instructions: next,
			})
			if err != nil {
				return err
			}
			err = link.RawAttachProgram(link.RawAttachProgramOptions{
				Target: ifi.Index, Program: prog, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
			})
			prog.Close()
			if err != nil {
				return fmt.Errorf("attach program %d to %s: %w", i, name, err)
			}
		}
		return nil
	})
}

// A link without room for the guard makes its node refuse pods, and the status names the link.
// Everything else still works: veild can restart, and a rebooted peer gets a tunnel with its new
// key.
func TestLinkWithoutAGuardShutsTheNodeAlone(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	a, b := pair(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	old, err := keyOf(ctx, n1, n2.Name)
	if err != nil || old == (wgkey.Public{}) {
		t.Fatalf("key of %s: %v, %v", n2.Name, old, err)
	}

	// The guard leaves links of pods alone, so that there is time to crowd it.
	err = n1.IP(ctx, fmt.Sprintf("link add odd0 group %d type veth peer name odd1",
		abi.PodGroup))
	errtest.Must(t, errors.Join(err, crowd(n1, "odd0"),
		n1.IP(ctx, "link set odd0 group 0 up")))
	const named = "link odd0 has no guard of its own"
	if s := waitProblem(ctx, t, n1, named); s.Ready || s.Guard.InForce || len(s.Problems) != 1 {
		t.Errorf("ready %t, guard in force %t, problems %q", s.Ready, s.Guard.InForce, s.Problems)
	}
	if _, err := os.Stat(n1.Path(abi.ReadyFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker is there: %v", err)
	}
	closed(ctx, t, n1, "a link has no guard")
	talk(ctx, t, a, b)

	nodetest.KillProgram(ctx, t, n1, "veild")
	nodetest.StartProgram(ctx, t, n1, "veild")
	waitProblem(ctx, t, n1, named)
	closed(ctx, t, n1, "veild was started beside a link without a guard")
	errtest.Must(t, n2.Reboot(ctx))
	takesKey(ctx, t, n1, n2, old, 60*time.Second)
	nodetest.WaitReady(ctx, t, n2)
	again := nodetest.AddPod(ctx, t, n2, "again")
	reaches(ctx, t, a, again)

	errtest.Must(t, n1.IP(ctx, "link del odd0"))
	nodetest.WaitReady(ctx, t, n1)
	if _, err := n1.AddPod(ctx, "later", lab.PodOptions{}); err != nil {
		t.Error(err)
	}
	nodetest.NoLeaks(t, l)
}
