package agent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// What was closed to pods stays closed until it is known that it need not be.
func TestAddressesOfServicesStayClosed(t *testing.T) {
	left, known := nettest.Addrs("198.19.199.1"), nettest.Addrs("198.19.199.2")
	for _, c := range []struct {
		situation    string
		ebpf, listed bool
		want         []netip.Addr
	}{
		{"another program translates", false, false, left},
		{"not all services are listed", true, false, nettest.Addrs("198.19.199.1", "198.19.199.2")},
		{"all are listed", true, true, known},
	} {
		a := &Agent{leftVIPs: left}
		if c.ebpf {
			a.services = &services{}
			a.services.vips.Put(service.Service{Name: service.Name{Name: "web"}, LoadBalancerIPs: known}, time.Now())
			a.services.listed.Store(c.listed)
		}
		var in inputs
		a.gatherVIPs(&in)
		if got := decide(in).guard.VIPs; !slices.Equal(got, c.want) {
			t.Errorf("%s: closed %v, want %v", c.situation, got, c.want)
		}
	}
}
