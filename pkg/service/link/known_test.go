package link

import (
	"math/bits"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// known counts the addresses that have had a flow.
func (l *linked) known(t *testing.T) int {
	t.Helper()
	n := 0
	err := bpfmaps.Each(l.Table, "service_known", func(_ uint32, v uint64) bool {
		n += bits.OnesCount64(v)
		return true
	})
	errtest.Must(t, err)
	return n
}

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
