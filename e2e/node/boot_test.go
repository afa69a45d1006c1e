package node_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Between a reboot and veild, a host's own processes could reach pods of other
// nodes by the default route; the boot unit closes that before the network is up.
func TestHostProcessesOfARebootedNodeAreClosed(t *testing.T) {
	ctx, l := newLab(t, lab.Options{BootUnit: true})
	for _, n := range l.Nodes() {
		waitReady(ctx, t, n)
	}

	pods := echoPods(ctx, t, l)
	meet(ctx, t, pods[0], pods[1])
	node := l.Nodes()[1]
	crash(t, node)
	if err := node.Boot(ctx, false); err != nil {
		t.Fatal(err)
	}

	tryAll(ctx, []lab.Place{node}, pods[0].Addrs, time.Second, func(to netip.Addr, proto string) {
		t.Errorf("%s to %s was answered with no veild running", proto, to)
	})
	closed(ctx, t, node, "with nothing but the boot unit")

	for _, program := range []string{"veil-wg", "veild"} {
		startProgram(ctx, t, node, program)
	}

	waitReady(ctx, t, node)
	again := echoPod(ctx, t, node, "again")

	meet(ctx, t, pods[0], again)
	noLeaks(t, l)
}
