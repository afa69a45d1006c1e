package planner

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// A restarted process has entry 0 before it has any service.
func TestHold(t *testing.T) {
	frontend := netip.MustParseAddrPort("198.18.0.10:443")
	api := func(backends ...string) service.APIServer {
		a := service.APIServer{Frontends: []netip.AddrPort{frontend}}
		for _, b := range backends {
			a.Backends = append(a.Backends, netip.MustParseAddrPort(b))
		}
		return a
	}
	c := planned(t, webService(func(s *service.Service) {
		s.SourceRanges, s.LoadBalancerIPs = []netip.Prefix{netip.MustParsePrefix("198.18.9.0/24")},
			addrs("198.18.8.1")
	}),
		endpoint("198.18.1.1", "ready"))
	c.planner.SetAPIServer(api("198.19.0.1:6443", "198.19.0.2:6443"))
	c.write(t, c.planner.Plan())
	sources := len(c.maps.sources)

	next, err := New("node-1", roomy)
	if err != nil {
		t.Fatal(err)
	}
	c.planner = next
	next.Adopt(c.maps.state())
	next.Hold(true)
	next.SetAPIServer(api("198.19.0.1:6443", "198.19.0.2:6443"))
	if changes := next.Plan(); !changes.Empty() {
		t.Errorf("the same API servers and unknown services: %d writes", changes.Writes())
	}
	next.SetAPIServer(api("198.19.0.2:6443"))
	c.write(t, next.Plan())
	if got := c.backends("198.18.0.10:443", service.Inside); got != "198.19.0.2:6443+0" {
		t.Errorf("entry 0 has %q while services are unknown", got)
	}
	if got := c.backends("198.18.0.1:80", service.Inside); got != "198.18.1.1:8080+1" ||
		len(c.maps.sources) != sources {
		t.Errorf("a service that is not known yet has %q and %d sources, want those of before", got,
			len(c.maps.sources))
	}
	next.Hold(false)
	c.write(t, next.Plan())
	if got := c.backends("198.18.0.1:80", service.Inside); got != "none" ||
		len(c.maps.sources) != 0 {
		t.Errorf("a service that was deleted before the restart has %q", got)
	}
	if got := c.backends("198.18.0.10:443", service.Inside); got != "198.19.0.2:6443+0" {
		t.Errorf("entry 0 has %q after the services were listed", got)
	}
}
