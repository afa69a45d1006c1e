package vm_test

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// The same oracle over the reference network: were it blind, this would pass too.
func TestClearNetworkIsSeen(t *testing.T) {
	ctx, c := newCluster(t, vm.Options{NoVeil: true})
	if err := c.InstallClear(ctx); err != nil {
		t.Fatal(err)
	}
	a, b := &vm.Pod{Name: "a", Node: c.Machines[0]}, &vm.Pod{Name: "b", Node: c.Machines[1]}
	for _, p := range []*vm.Pod{a, b} {
		if err := c.RunPod(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	send(ctx, t, a, "tcp", netip.AddrPortFrom(b.Addrs[0], lab.EchoPort), "b")
	result, err := c.Close()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	if result.Plaintext == 0 || result.Dropped > 0 {
		t.Errorf("the oracle saw %d plaintext frames and lost %d: it proves nothing", result.Plaintext, result.Dropped)
	}
}
