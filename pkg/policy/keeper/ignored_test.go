package keeper

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func claiming(node, name string, addrs ...string) policy.Pod {
	p := policy.Pod{Name: policy.Name{Namespace: "shop", Name: name}, UID: name, Node: node}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
	}
	return p
}

func TestStatusCountsAddressesThatIdentifyNoPod(t *testing.T) {
	k := New(PolicyConfig{Node: "here", Paths: pod.DefaultPaths(),
		Log: slog.New(slog.DiscardHandler)})
	want := func(outside, shared int, some ...string) {
		t.Helper()
		got := k.Status().Ignored
		if got.OutsidePrefix != outside || got.Shared != shared ||
			!slices.Equal(got.Some, some) {
			t.Errorf("%+v, want %d outside, %d shared, %q", got, outside, shared, some)
		}
	}

	k.PutPod(claiming("there", "good", "198.18.2.1"))
	k.PutPod(claiming("there", "liar", "198.18.1.9", "198.18.2.9", "fd42:1:1::9"))
	host := claiming("there", "host", "192.0.2.1")
	host.HostNetwork = true
	k.PutPod(host)
	finished := claiming("there", "finished", "198.18.1.7")
	finished.Finished = true
	k.PutPod(finished)
	want(0, 0) // before the prefixes are known, no address counts as outside

	k.SetPrefixes(prefixes)
	lie := "198.18.1.9 of pod shop/liar is outside the prefixes of node there"
	want(2, 0, lie)
	k.PutPod(claiming("there", "twin", "198.18.2.1"))
	want(2, 1, lie, "2 pods claim 198.18.2.1: shop/good, shop/twin")
	k.DeletePod(policy.Name{Namespace: "shop", Name: "good"})
	want(2, 0, lie)

	k.PutPod(claiming("there", "liar", "198.18.2.9"))
	want(0, 0)
	k.SetPrefixes(map[string][]netip.Prefix{"here": prefixes["here"]})
	want(2, 0, "198.18.2.9 of pod shop/liar is outside the prefixes of node there",
		"198.18.2.1 of pod shop/twin is outside the prefixes of node there")
	k.DeletePod(policy.Name{Namespace: "shop", Name: "liar"})
	k.SetPrefixes(prefixes)
	want(0, 0)
}

func TestStatusNamesAFewAddressesThatIdentifyNoPod(t *testing.T) {
	k := New(PolicyConfig{Node: "here", Paths: pod.DefaultPaths(),
		Log: slog.New(slog.DiscardHandler)})
	k.SetPrefixes(prefixes)
	for i := range 100 {
		k.PutPod(claiming("there", fmt.Sprintf("liar-%02d", i), fmt.Sprint("198.18.1.", i)))
		for j := range 5 {
			k.PutPod(claiming("there", fmt.Sprint("twin-", i, "-", j), fmt.Sprint("198.18.2.", i)))
		}
	}

	got := k.Status().Ignored
	want := telemetry.IgnoredAddrs{OutsidePrefix: 100, Shared: 100, Some: []string{
		"198.18.1.0 of pod shop/liar-00 is outside the prefixes of node there",
		"198.18.1.1 of pod shop/liar-01 is outside the prefixes of node there",
		"198.18.1.2 of pod shop/liar-02 is outside the prefixes of node there",
		"5 pods claim 198.18.2.0: shop/twin-0-0, shop/twin-0-1, shop/twin-0-2",
		"5 pods claim 198.18.2.1: shop/twin-1-0, shop/twin-1-1, shop/twin-1-2",
		"5 pods claim 198.18.2.2: shop/twin-2-0, shop/twin-2-1, shop/twin-2-2"}}
	if strings.Join(got.Some, "\n") != strings.Join(want.Some, "\n") ||
		got.OutsidePrefix != want.OutsidePrefix || got.Shared != want.Shared {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
