package link

import (
	"math/bits"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// known counts the addresses that have had a flow.
func (l *linked) known(t *testing.T) int {
	t.Helper()
	n := 0
	err := bpfmaps.Each(l.Table, bpfmaps.MapFlowBloom, func(_ uint32, v uint64) bool {
		n += bits.OnesCount64(v)
		return true
	})
	errtest.Must(t, err)
	return n
}

// allKnown is the result of known where every address may have had a flow.
const allKnown = 1 << 16

func TestAddressesOfFlowsAreKnown(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		for _, to := range otherAt {
			ask(t, r.pod, "tcp", to, "8080", "")
			ask(t, r.pod, "udp", to, "5353", "")
		}
		if n := r.known(t); n > 0 {
			t.Errorf("without flows %d addresses are known", n)
		}
		ask(t, r.pod, "tcp", clusterAt[0], "80", "")
		had := r.known(t)
		if had == 0 || had > 8 {
			t.Errorf("with one flow %d addresses are known", had)
		}
		r.reload(t, false)
		if n := r.known(t); n != had {
			t.Errorf("%d addresses were known, and with other programs %d", had, n)
		}
	})
}

// attachEarlier attaches a program of an earlier version to a pod's link. It uses the map of flows,
// and none of the later maps.
func (l *linked) attachEarlier(t *testing.T) {
	t.Helper()
	earlier, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: progPodIn, Type: ebpf.SchedCLS,
		License: "GPL", Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, l.Map(bpfmaps.MapFlows).FD()), asm.Mov.Imm(asm.R0, -1),
			asm.Return(),
		}})
	errtest.Must(t, err)
	t.Cleanup(func() { earlier.Close() })

	pod := point{int(l.index(t, "vpod1")), ingress}
	l.host.Run(t, func() error {
		h, err := nl.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		return hooksFor(l.tcx).attach(h, pod, progPodIn, earlier)
	})
}

// Programs that made flows without this map, or with another one, made them for unknown addresses.
func TestAddressesOfEarlierFlowsAreUnknown(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.attachEarlier(t)

		if n := l.known(t); n > 0 {
			t.Errorf("%d addresses are known of nothing", n)
		}

		l.attach(t)
		if n := l.known(t); n != allKnown {
			t.Errorf("%d addresses are known when an earlier version is replaced, want all", n)
		}

		for _, c := range []struct {
			gone []string
			want int
		}{
			{[]string{bpfmaps.MapFlowBloom, bpfmaps.MapFlows}, 0},
			{[]string{bpfmaps.MapFlowBloom}, allKnown},
		} {
			for _, name := range c.gone {
				errtest.Must(t, os.Remove(l.dir+"/"+name))
			}
			l.open(t, withTCX)
			if n := l.known(t); n != c.want {
				t.Errorf("%d addresses are known after %v had gone, want %d", n, c.gone, c.want)
			}
		}
	})
}
