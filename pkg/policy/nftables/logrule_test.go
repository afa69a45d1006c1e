package nftables_test

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
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

// otherSources are the pods that are denied once while one pod scans: 60 at thirty a second, or 600
// with KUBEVEIL_LAB_LONG=1. 600 pods that are denied once a minute are ten a second.
func otherSources() int {
	if !nettest.Long() {
		return 60
	}
	return 600
}

// Many sources are denied one after the other, while one pod sends as fast as it can. The kernel
// logs a packet of each of them.
func TestScanHidesNoDenialOfOthers(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	var drops *nftables.DropLog
	l.node.Run(t, func() (err error) { drops, err = nftables.OpenDropLog(); return err })
	const scanner, other, each = 3, 2, 50
	var mu sync.Mutex
	sources := map[netip.Addr]bool{} // guarded by mu
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			received, err := drops.Receive()
			if err != nil { // It is closed.
				return
			}
			mu.Lock()
			for _, d := range received {
				sources[d.Src] = true
			}
			mu.Unlock()
		}
	})
	defer reader.Wait()
	defer drops.Close()

	var want []netip.Addr
	pace := time.NewTicker(time.Second / 30)
	defer pace.Stop()
	for i := range otherSources() {
		<-pace.C
		for f, flow := range to(l, other, 81) {
			flow.Src = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(200 + i/250), byte(1 + i%250)}),
				netip.AddrFrom16([16]byte{0xfd, 0x42, 14: byte(200 + i/250), 15: byte(1 + i%250)})}[f]
			want = append(want, flow.Src)
			scan := slices.Repeat([][]byte{packet(to(l, scanner, 81)[f], 0)}, each)
			l.pods[scanner].Run(t, func() error { return nettest.SendFrames("eth0", scan...) })
			l.pods[other].Run(t, func() error { return nettest.SendFrames("eth0", packet(flow, 0)) })
		}
	}
	missing := func() []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		return slices.DeleteFunc(slices.Clone(want), func(a netip.Addr) bool { return sources[a] })
	}
	for deadline := time.Now().Add(expectation); len(missing()) > 0; <-pace.C {
		if time.Now().After(deadline) {
			t.Fatalf("of %d denials are not logged: %v", len(want), missing())
		}
	}
}
