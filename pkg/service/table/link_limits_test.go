package table

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	settings "github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// routesOf is what may be done at a link of the host.
func (r *routed) routesOf(t *testing.T, link string) uint8 {
	t.Helper()
	var how uint8
	if err := r.maps[mapRoutes].Lookup(r.index(t, link), &how); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return how
}

func (r *routed) expectRoutes(t *testing.T, when string, want map[string]uint8) {
	t.Helper()
	for link, how := range want {
		if got := r.routesOf(t, link); got != how {
			t.Errorf("%s: at %s %04b may be done, want %04b", when, link, got, how)
		}
	}
}

// wholePod is what may be done at a pod's link without limits.
const wholePod = routePod | routePeer | routeFrom

func (r *routed) tc(t *testing.T, args string) {
	t.Helper()
	nettest.NeedProgram(t, "tc")
	r.host.Run(t, func() error {
		if out, err := exec.Command("tc", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("tc %s: %w: %s", args, err, out)
		}
		return nil
	})
	r.linked.attach(t)
}

// limited is how many packets the limit of other has let through.
func (r *routed) limited(t *testing.T) uint32 {
	t.Helper()
	h := r.host.Handle()
	link, err := h.LinkByName("vpod2")
	if err != nil {
		t.Fatal(err)
	}
	qdiscs, err := h.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		if q.Type() == "tbf" {
			return q.Attrs().Statistics.Basic.Packets
		}
	}
	t.Fatal("vpod2 has no limit")
	return 0
}

func TestLimitsOfPodsSeeTheirPackets(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.nft(t, seeAll)
		r.expectRoutes(t, "without limits", map[string]uint8{"vpod1": wholePod, "vpod2": wholePod, "u0": routeExit, "veil0": 0})
		r.tc(t, "qdisc add dev vpod2 root tbf rate 1gbit burst 64kb limit 1mb")
		r.expectRoutes(t, "with a limit to what it gets", map[string]uint8{"vpod1": wholePod, "vpod2": routePod | routeFrom})
		for i, to := range otherAt {
			for port, to := range map[string]string{"5353": to, "53": clusterAt[i]} {
				before := r.limited(t)
				ask(t, r.pod, "udp", to, port, "")
				if now := r.limited(t); now == before {
					t.Errorf("the limit did not see what was sent to %s", to)
				}
			}
		}
		r.expectSeen(t, "with a limit to what it gets", false)
		r.tc(t, "qdisc del dev vpod2 root")
		r.expectRoutes(t, "without it", map[string]uint8{"vpod2": wholePod})
		if !withTCX {
			return // clsact has the place of a limit to what a pod sends
		}
		r.tc(t, "qdisc add dev vpod1 ingress")
		r.expectRoutes(t, "with a limit to what it sends", map[string]uint8{"vpod1": routePod | routePeer})
		for _, to := range otherAt {
			ask(t, r.pod, "udp", to, "5353", "")
			r.expectSeen(t, "with a limit to what it sends", true)
		}
	})
}

// TestNewPodsAreSentToByTheHostsEndFirst: their limits are made after their links.
func TestNewPodsAreSentToByTheHostsEndFirst(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	h := r.host.Handle()
	appear := func(name string) {
		attrs := nl.NewLinkAttrs()
		attrs.Name, attrs.Group = name, settings.PodGroup
		if err := h.LinkAdd(&nl.Veth{LinkAttrs: attrs, PeerName: name + "p"}); err != nil {
			t.Fatal(err)
		}
	}
	watch := func(patience time.Duration) (stop func()) {
		r.patience = patience
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.host.Do(func() error { return r.WatchLinks(ctx) }) }()
		return func() {
			cancel()
			group(t, r.host, "u0", 7) // a change that ends the wait
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	becomes := func(link string, want uint8) {
		nettest.Until(t, 10*time.Second, fmt.Sprintf("%s has %04b", link, want), func() bool { return r.routesOf(t, link) == want })
	}
	stop := watch(time.Hour)
	appear("vpod3")
	appear("vpod4") // seen behind it
	becomes("vpod4", routePod)
	r.expectRoutes(t, "before the patience ends", map[string]uint8{"vpod1": wholePod, "vpod3": routePod, "u0": routeExit})
	stop()
	stop = watch(time.Millisecond)
	appear("vpod5")
	for _, link := range []string{"vpod3", "vpod4", "vpod5"} {
		becomes(link, wholePod)
	}
	gone := r.index(t, "vpod3")
	r.ip(t, "link del vpod3")
	appear("vpod6")
	nettest.Until(t, 10*time.Second, "a link that is gone is forgotten", func() bool {
		var how uint8
		return errors.Is(r.maps[mapRoutes].Lookup(gone, &how), ebpf.ErrKeyNotExist)
	})
	stop()
}
