package service

import (
	"net/netip"
	"testing"
)

// TestDNSCacheOfTheNodeKeepsTheServiceAddress gives the node the address of a DNS service, as
// NodeLocal DNSCache does, and takes it away again.
func TestDNSCacheOfTheNodeKeepsTheServiceAddress(t *testing.T) {
	p, err := New("node-1", DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	dns, node := netip.MustParseAddr("198.18.0.10"), netip.MustParseAddr("198.19.0.1")
	name := Name{"kube-system", "kube-dns"}
	p.Hold(true)
	p.PutService(Service{Name: name, ClusterIPs: []netip.Addr{dns}, Ports: []Port{
		{Name: "dns", Protocol: UDP, Port: 53}, {Name: "dns-tcp", Protocol: TCP, Port: 53},
		{Name: "metrics", Protocol: TCP, Port: 9153}}})
	p.PutSlice(Slice{Service: name, Name: "1",
		Ports: []SlicePort{{"dns", UDP, 53}, {"dns-tcp", TCP, 53}, {"metrics", TCP, 9153}},
		Endpoints: EndpointsOf(Endpoint{Addr: netip.MustParseAddr("198.18.1.5"), Ready: true,
			Serving: true})})
	frontend := func(port uint16, protocol Protocol) FrontendKey {
		return frontendKey(netip.AddrPortFrom(dns, port), protocol, Inside)
	}
	questions := []FrontendKey{frontend(53, UDP), frontend(53, TCP)}

	served := map[FrontendKey]bool{}
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
		if !served[frontend(9153, TCP)] {
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
