package keeper

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// Endpoints on a dead node of another cluster count as terminating and serving, until it answers.
func TestEndpointsOfDeadNodesComeLast(t *testing.T) {
	f := &Feature{}
	f.remote.ranges = remoteRanges([]cluster.Site{
		{Name: "b", PodRanges: nettest.Prefixes("10.245.0.0/16")},
		{Name: "c", Reach: cluster.ReachNone, PodRanges: nettest.Prefixes("10.246.0.0/16")}})
	passed := map[string]service.Slice{}
	pass := func(s service.Slice) { passed[s.Name] = s }
	slice := func(name string, addrs ...string) service.Slice {
		s := service.Slice{Service: service.Name{Namespace: "shop", Name: "web"}, Name: name}
		for _, a := range nettest.Addrs(addrs...) {
			s.Endpoints.Append(service.Endpoint{Addr: a, Ready: true, Serving: true})
		}
		return s
	}
	for s, remote := range map[string]bool{"10.244.1.1": false, "10.246.1.1": false,
		"10.245.1.1": true} {
		if got := f.remote.put(slice(s, s), pass); got != remote {
			t.Errorf("%s is of an open site: %t", s, got)
		}
	}
	f.remote.put(slice("two", "10.245.2.1", "10.245.1.2"), pass)
	if got := f.Remote(); len(got) != 3 || got[0] != netip.MustParseAddr("10.245.1.1") {
		t.Errorf("remote addresses %v", got)
	}

	clear(passed)
	f.remote.setDead(nettest.Prefixes("10.245.1.0/24"), pass)
	one, two := passed["10.245.1.1"].Endpoints.At(0), passed["two"].Endpoints
	if len(passed) != 2 ||
		one.Ready || !one.Terminating || !two.At(0).Ready || two.At(1).Ready {
		t.Errorf("passed %+v", passed)
	}
	// Only slices with endpoints of another dead node are passed on.
	for _, dead := range [][]string{{"10.245.1.0/24", "10.245.2.0/24"}, {"10.245.1.0/24"}} {
		clear(passed)
		f.remote.setDead(nettest.Prefixes(dead...), pass)
		if two := passed["two"].Endpoints; len(passed) != 1 || two.At(0).Ready != (len(dead) == 1) {
			t.Errorf("dead are %q: passed %+v", dead, passed)
		}
	}
	f.remote.put(slice("late", "10.245.1.3"), pass)
	if e := passed["late"].Endpoints.At(0); e.Ready || !e.Serving || !e.Terminating {
		t.Errorf("a late endpoint of a dead node is %+v", e)
	}
	f.remote.setDead(nil, pass)
	for name, s := range passed {
		for e := range s.Endpoints.All() {
			if !e.Ready || e.Terminating {
				t.Errorf("%s is not ready again: %+v", name, e)
			}
		}
	}

	owner := service.Name{Namespace: "shop", Name: "web"}
	gone := func(service.Name, string) {}
	for name, remote := range map[string]bool{"two": true, "10.244.1.1": false} {
		if got := f.remote.delete(owner, name, gone); got != remote {
			t.Errorf("deletion of %s changes remote addresses: %t", name, got)
		}
	}
	if got := f.Remote(); len(got) != 2 {
		t.Errorf("remote addresses %v", got)
	}
}

func TestPrefixOfAnAddressIsFound(t *testing.T) {
	x := newPrefixes(nettest.Prefixes("10.245.1.0/24", "10.245.2.128/25", "10.245.9.7/16",
		"fd42:1::/64", "fd42::5/128")...)
	for addr, want := range map[string]string{
		"10.245.1.9": "10.245.1.0/24 10.245.0.0/16", "10.245.2.200": "10.245.2.128/25 10.245.0.0/16",
		"10.245.2.1": "10.245.0.0/16", "10.246.1.1": "", "fd42:1::9": "fd42:1::/64",
		"fd42::5": "fd42::5/128", "fd42::6": "",
	} {
		p, is := x.find(netip.MustParseAddr(addr))
		if is != (want != "") || is && !strings.Contains(want, p.String()) {
			t.Errorf("%s is in %v, %t; want %q", addr, p, is, want)
		}
	}
}
