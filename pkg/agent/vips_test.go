package agent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/table"
)

// What was closed to pods stays closed until it is known that it need not be.
func TestAddressesOfServicesStayClosed(t *testing.T) {
	left, known := nettest.Addrs("198.19.199.1"), nettest.Addrs("198.19.199.2")
	both := nettest.Addrs("198.19.199.1", "198.19.199.2")
	const hours = 3 * time.Hour
	for _, c := range []struct {
		situation    string
		ebpf, listed bool
		ago          time.Duration // when veild began
		want         []netip.Addr
	}{
		{"another program translates", false, false, hours, left},
		{"not all services are listed", true, false, 0, both},
		{"not all services are listed for hours", true, false, hours, both},
		{"all are listed, but flows may be left", true, true, 0, both},
		{"all are listed, and no flow is left", true, true, hours, known},
	} {
		a := &Agent{leftVIPs: left}
		if c.ebpf {
			a.services = &services{links: link.New(&table.Table{}, a.log)} // which has no flows
			a.services.vips.Left(left, time.Now().Add(-c.ago))
			a.services.vips.Put(service.Service{Name: service.Name{Name: "web"},
				LoadBalancerIPs: known}, time.Now())
			a.services.listed.Store(c.listed)
		}

		var in inputs
		a.gatherVIPs(&in)
		if got := decide(in).guard.VIPs; !slices.Equal(got, c.want) {
			t.Errorf("%s: closed %v, want %v", c.situation, got, c.want)
		}
	}
}

// A node's address may be one of a service's, as an external IP or by a balancer on the nodes: pods
// have more to ask there than services.
func TestAddressesOfNodesStayOpen(t *testing.T) {
	in := two(t)
	in.vips = addrs("198.18.0.12", "198.18.64.1", "fd42::c", "fd42:64::1")
	if got, want := decide(in).guard.VIPs, addrs("198.18.64.1", "fd42:64::1"); !slices.Equal(got,
		want) {
		t.Errorf("closed are %v, want %v", got, want)
	}
}
