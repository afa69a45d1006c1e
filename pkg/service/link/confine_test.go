package link

import (
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// named returns a set of links.
func named(links ...string) map[string]bool {
	names := map[string]bool{}
	for _, l := range links {
		names[l] = true
	}
	return names
}

func (r *routed) retain(t *testing.T, links ...string) {
	t.Helper()
	r.host.Run(t, func() error {
		_, err := r.Links.retain(named(links...), allowAll)
		return err
	})
}

func (r *routed) allow(t *testing.T, links ...string) {
	t.Helper()
	r.host.Run(t, func() error {
		return r.Move(named(links...), allowAll, func() error { return nil })
	})
}

func allowAll(nl.Opened) bool { return true }

// restart does what another process does with the pinned maps and the attached programs.
func (r *routed) restart(t *testing.T, hostRouting bool) {
	t.Helper()
	r.again(t, hostRouting)
	r.Confine()
}

func TestOnlyAllowedPodsHaveTheFastPath(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		want := func(when string, one, two uint8) {
			t.Helper()
			r.expectRoutes(t, when, map[string]uint8{"vpod1": one, "vpod2": two})
			fast := r.Fast()
			if fast != nil && (fast["vpod1"] != (one != 0) || fast["vpod2"] != (two != 0)) {
				t.Errorf("%s: Fast returned %v", when, fast)
			}
		}

		r.restart(t, true)
		r.linked.attach(t)
		want("nobody said which pods are judged", wholePod, wholePod)
		r.retain(t, "vpod1", "vpod3")
		want("a pod is judged", wholePod, 0)
		if r.Fast() == nil {
			t.Error("Fast returned nil: it does not know which pods have the fast path")
		}
		r.linked.attach(t)
		want("links are looked at again", wholePod, 0)
		r.allow(t, "vpod1", "vpod2")
		want("no pod is judged", wholePod, wholePod)
		r.retain(t, "vpod2")
		r.retain(t, "vpod1", "vpod2")
		want("a pod is to be judged no more", 0, wholePod)
		r.allow(t, "vpod1", "vpod2")
		want("it is judged no more", wholePod, wholePod)

		r.retain(t, "vpod2")
		r.restart(t, true)
		r.linked.attach(t)
		want("another process", 0, wholePod)
		r.retain(t, "vpod1", "vpod2")
		want("of which one retains only", 0, wholePod)
		r.allow(t, "vpod1")
		want("the other pod is judged", wholePod, 0)

		r.restart(t, false)
		r.retain(t, "vpod1")
		want("a process without host routing, before its programs are attached", 0, 0)
		r.linked.attach(t)
		r.allow(t, "vpod1")
		want("a process without host routing", 0, 0)
		if fast := r.Fast(); fast != nil {
			t.Errorf("without host routing %v have the fast path", fast)
		}
	})
}

// A process without host routing takes the fast path from pods as soon as it attaches programs. It
// may learn the policies much later, as without an API server.
func TestPodsLoseTheFastPathBeforePoliciesAreKnown(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	r.expectRoutes(t, "before", map[string]uint8{"vpod1": wholePod, "vpod2": wholePod})
	c := hold(t, r.pod, otherAt[0], "8080")
	r.restart(t, false)
	r.linked.attach(t)
	r.expectRoutes(t, "no policy is known", map[string]uint8{"vpod1": 0, "vpod2": 0})
	if n := r.tracked(t, unix.IPPROTO_TCP, c.LocalAddr(), c.RemoteAddr()); n != 1 {
		t.Errorf("conntrack has %d entries of an open connection, want 1", n)
	}
	r.allow(t, "vpod1")
	r.expectRoutes(t, "a policy is known", map[string]uint8{"vpod1": 0, "vpod2": 0})
}

// All pods lose the fast path while the process runs. Their open connections go on in conntrack,
// and new links and later decisions of policies give it to none.
func TestStoppedRoutingGivesNoPodTheFastPath(t *testing.T) {
	nettest.NeedBPF(t)
	for name, judged := range map[string]bool{"without policies": false, "with policies": true} {
		t.Run(name, func(t *testing.T) {
			r := newRouted(t, true, true)
			if judged {
				r.restart(t, true)
				r.linked.attach(t)
				r.allow(t, "vpod1", "vpod2")
			}
			none := map[string]uint8{"vpod1": 0, "vpod2": 0}
			r.expectRoutes(t, "before", map[string]uint8{"vpod1": wholePod, "vpod2": wholePod})
			c := hold(t, r.pod, otherAt[0], "8080")
			r.host.Run(t, r.StopRouting)
			r.expectRoutes(t, "stopped", none)
			if n := r.tracked(t, unix.IPPROTO_TCP, c.LocalAddr(), c.RemoteAddr()); n != 1 {
				t.Errorf("conntrack has %d entries of an open connection, want 1", n)
			}
			if _, _, others := r.Left(); others != 2 {
				t.Errorf("%d pods are counted, want 2", others)
			}

			r.linked.attach(t)
			r.expectRoutes(t, "links are looked at again", none)
			if judged {
				r.allow(t, "vpod1", "vpod2")
				r.expectRoutes(t, "no pod is judged", none)
			}
		})
	}
}

// A new link waits for the settings of plugins. A pod whose sent traffic is limited has no fast
// path in either direction.
func TestAllowedPodHasTheFastPathBothWaysOrNot(t *testing.T) {
	r := newRouted(t, true, true)
	r.restart(t, true)
	r.allow(t)
	r.allow(t, "vpod1")
	r.expectRoutes(t, "it was not finished", map[string]uint8{"vpod1": 0})
	r.linked.attach(t)
	r.expectRoutes(t, "it is finished", map[string]uint8{"vpod1": wholePod, "vpod2": 0})
	r.tc(t, "qdisc add dev vpod1 ingress")
	r.expectRoutes(t, "with a limit to what it sends", map[string]uint8{"vpod1": 0})
}

// A rename of its link does not take a pod out of its policies.
func TestRenamedLinkLosesTheFastPath(t *testing.T) {
	r := newRouted(t, true, true)
	r.restart(t, true)
	r.linked.attach(t)
	r.allow(t, "vpod1", "vpod2")
	r.ip(t, "link set vpod1 name vother")
	r.retain(t, "vpod2")
	r.expectRoutes(t, "it is judged", map[string]uint8{"vother": 0, "vpod2": wholePod})
	r.linked.attach(t)
	r.expectRoutes(t, "links are looked at again", map[string]uint8{"vother": 0})
}

// Programs of an earlier process whose maps have lost their pins use another map of routes.
func TestPodLosesTheFastPathOfUnpinnedMaps(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.nft(t, seeAll)
		ask(t, r.pod, "udp", otherAt[0], "5353", "")
		r.expectSeen(t, "the pod is allowed", false)
		r.host.Run(t, func() error { return r.Map(mapRoutes).Unpin() })
		r.restart(t, true)
		ask(t, r.pod, "udp", otherAt[0], "5353", "")
		r.expectSeen(t, "the programs of before go on", false)
		r.retain(t)
		ask(t, r.pod, "udp", otherAt[0], "5353", "")
		r.expectSeen(t, "the pod is judged", true)
	})
}

// A pod that loses the fast path loses it both ways, also for its open connections.
func TestJudgedPodMeetsNetfilterBothWays(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.restart(t, true)
		r.linked.attach(t)
		if !r.tcx {
			errtest.Must(t, r.Map(mapRoutes).Put(r.index(t, "u0"), routeExit))
		}
		r.allow(t, "vpod1", "vpod2")

		var open []net.Conn
		for i := range otherAt {
			r.client.Run(t, func() error {
				c, err := net.DialTimeout("tcp", net.JoinHostPort(outsideAt[i], "80"),
					servicetest.Patience)
				if err == nil {
					t.Cleanup(func() { c.Close() })
					_, err = servicetest.Converse(c)
					open = append(open, c)
				}
				return err
			})
		}
		r.nft(t, stopAll)
		for _, c := range open {
			errtest.Must(t, errtest.Of(servicetest.Converse(c)))
		}

		r.retain(t, "vpod1")
		for i, to := range otherAt {
			for _, network := range []string{"tcp", "udp"} {
				port := map[string]string{"tcp": "80", "udp": "53"}[network]
				own := map[string]string{"tcp": "8080", "udp": "5353"}[network]
				r.expectCounted(t, stopped, r.pod, net.Dialer{}, network, to, own)
				r.expectCounted(t, stopped, r.pod, net.Dialer{}, network, clusterAt[i], port)
				r.expectCounted(t, stopped, r.client, net.Dialer{}, network, outsideAt[i], port)
				r.expectCounted(t, stopped, r.other, net.Dialer{}, network,
					[]string{"198.18.1.5", "fd42:1::5"}[i], own)
			}
		}

		r.nft(t, `chain f { type filter hook forward priority 0; iifname "vpod2" counter name "seen"; `+
			`iifname "u0" counter name "stopped"; };`)
		for _, c := range open {
			before := []int{r.count(t, seen), r.count(t, stopped)}
			_, _ = servicetest.Converse(c) // conntrack sees it only from the middle on
			now := []int{r.count(t, seen), r.count(t, stopped)}
			if slices.Compare(now, before) <= 0 || now[0] == before[0] || now[1] == before[1] {
				t.Errorf("netfilter met %v packets of the pod and of the client, then %v", before, now)
			}
		}
	})
}
