package nftables_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// The kernel limits each pod separately, so a pod that is often denied does not hide other pods of
// the same chain.
func TestKernelLogsEachPodForItself(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	var drops *nftables.DropLog
	l.node.Run(t, func() (err error) { drops, err = nftables.OpenDropLog(); return err })
	defer drops.Close()

	const noisy, quiet = 3, 2
	var flows []policy.Flow
	for port := range uint16(100) {
		flows = append(flows, to(l, noisy, 1000+port)...)
	}
	l.arrive(flows, false)
	l.arrive(to(l, quiet, 81), false)

	counts := map[netip.Addr]int{}
	end := time.AfterFunc(expectation, func() { drops.Close() })
	defer end.Stop()
	for counts[policytest.PodAddrs(quiet)[0]]*counts[policytest.PodAddrs(quiet)[1]] == 0 {
		received, err := drops.Receive()
		if err != nil {
			t.Fatalf("drops of the quiet pod are not logged: %v; logged %v", err, counts)
		}
		for _, d := range received {
			counts[d.Src]++
		}
	}
	for _, a := range policytest.PodAddrs(noisy) {
		if n := counts[a]; n == 0 || n > 50 {
			t.Errorf("%d of 100 drops of %v are logged, want some, and not all", n, a)
		}
	}
}
