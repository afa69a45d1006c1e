package planner

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// TestDNSCacheOfTheNodeKeepsTheServiceAddress gives the node the address of a DNS service, as
// NodeLocal DNSCache does, and takes it away again.
func TestDNSCacheOfTheNodeKeepsTheServiceAddress(t *testing.T) {
	p, err := New("node-1", service.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	dns, node := netip.MustParseAddr("198.18.0.10"), netip.MustParseAddr("198.19.0.1")
	name := service.Name{Namespace: "kube-system", Name: "kube-dns"}
	p.Hold(true)
	p.PutService(service.Service{Name: name, ClusterIPs: []netip.Addr{dns}, Ports: []service.Port{
		{Name: "dns", Protocol: service.UDP, Port: 53}, {Name: "dns-tcp", Protocol: service.TCP,
			Port: 53},
		{Name: "metrics", Protocol: service.TCP, Port: 9153}}})
	p.PutSlice(service.Slice{Service: name, Name: "1",
		Ports: []service.SlicePort{{Name: "dns", Protocol: service.UDP, Port: 53},
			{Name: "dns-tcp", Protocol: service.TCP, Port: 53}, {Name: "metrics",
				Protocol: service.TCP, Port: 9153}},
		Endpoints: service.EndpointsOf(service.Endpoint{Addr: netip.MustParseAddr("198.18.1.5"),
			Ready:   true,
			Serving: true})})
	frontend := func(port uint16, protocol service.Protocol) service.FrontendKey {
		return service.MakeFrontendKey(netip.AddrPortFrom(dns, port), protocol, service.Inside)
	}
	questions := []service.FrontendKey{frontend(53, service.UDP), frontend(53, service.TCP)}

	served := map[service.FrontendKey]bool{}
	plan := func() {
		c := p.Plan()
		for _, k := range c.Frontends.Keys {
			served[k] = true
		}
		for _, k := range c.DropFrontends {
			delete(served, k)
		}
	}
	expect := func(situation string, dnsServed bool) {
		t.Helper()
		plan()
		for _, k := range questions {
			if served[k] != dnsServed {
				t.Errorf("%s: the table has %v: %t, want %t", situation, k, served[k], dnsServed)
			}
		}
		if !served[frontend(9153, service.TCP)] {
			t.Errorf("%s: the port of metrics is not served", situation)
		}
	}

	p.Prepare()
	p.Prepare()
	p.Hold(false)
	p.SetOwnAddrs([]netip.Addr{dns, node})
	expect("with a cache, and decided before the addresses were known", false)
	p.SetOwnAddrs([]netip.Addr{node})
	expect("the cache is gone", true)
	p.SetOwnAddrs([]netip.Addr{dns, node})
	expect("it is back", false)
}
