package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// What was closed to pods stays closed until it is known that it need not be.
func TestAddressesOfServicesStayClosed(t *testing.T) {
	left, known := nettest.Addrs("198.19.199.1"), nettest.Addrs("198.19.199.2")
	for _, c := range []struct {
		situation    string
		ebpf, listed bool
		vips, former []netip.Addr
	}{
		{"another program translates", false, false, nil, left},
		{"not all services are listed", true, false, nettest.Addrs("198.19.199.1", "198.19.199.2"), nil},
		{"all are listed", true, true, known, nil},
	} {
		a := &Agent{leftVIPs: left}
		if c.ebpf {
			a.services = &services{}
			a.services.vips.Put(service.Service{Name: service.Name{Name: "web"}, LoadBalancerIPs: known})
			a.services.listed.Store(c.listed)
		}
		var in inputs
		a.gatherVIPs(&in)
		got := decide(in).guard
		if !slices.Equal(got.VIPs, c.vips) || !slices.Equal(got.FormerVIPs, c.former) {
			t.Errorf("%s: closed %v and %v, want %v and %v", c.situation, got.VIPs, got.FormerVIPs, c.vips, c.former)
		}
	}
}
