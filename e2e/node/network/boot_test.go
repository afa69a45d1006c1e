package network_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Between a reboot and the start of veild, processes of the host could send packets for pods of
// other nodes in clear, by the default route. The boot unit prevents this before the network is up.
func TestHostProcessesOfARebootedNodeAreClosed(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{BootUnit: true})
	for _, n := range l.Nodes() {
		nodetest.WaitReady(ctx, t, n)
	}

	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	node := l.Nodes()[1]
	crash(t, node)
	errtest.Must(t, node.Boot(ctx, false))

	tryAll(ctx, []traffic.Place{node}, pods[0].Addrs, time.Second, func(to netip.Addr,
		proto string) {
		t.Errorf("%s to %s was answered with no veild running", proto, to)
	})
	closed(ctx, t, node, "with nothing but the boot unit")

	for _, program := range []string{"veil-wg", "veild"} {
		nodetest.StartProgram(ctx, t, node, program)
	}

	nodetest.WaitReady(ctx, t, node)
	again := nodetest.EchoPod(ctx, t, node, "again")

	nodetest.Meet(ctx, t, pods[0], again)
	nodetest.NoLeaks(t, l)
}
