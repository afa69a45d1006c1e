package service

import (
	"net/netip"
	"testing"
)

func TestSizes(t *testing.T) {
	p, err := New("node-1", Limits{Frontends: 64, BackendSlots: 1024,
		SourceRanges: 64})
	if err != nil {
		t.Fatal(err)
	}

	name := Name{"test", "dns"}
	p.PutService(Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("198.18.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("198.18.0.2")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16")},
		Ports:           []Port{{"dns", UDP, 53, 0}},
	})

	slice := Slice{Service: name, Name: "1", Ports: []SlicePort{{"dns", UDP, 53}}}
	for _, a := range []string{"198.18.1.1", "198.18.1.2", "198.18.1.3"} {
		slice.Endpoints.Append(Endpoint{Addr: netip.MustParseAddr(a), Ready: true, Serving: true})
	}

	p.PutSlice(slice)
	p.Plan()
	if got, want := p.Sizes(), (Limits{Frontends: 3, BackendSlots: apiSlots + 4,
		SourceRanges: 1}); got != want {
		t.Errorf("with a service: %+v, want %+v", got, want)
	}

	p.DeleteService(name)
	p.Plan()
	if got, want := p.Sizes(), (Limits{BackendSlots: apiSlots}); got != want {
		t.Errorf("without: %+v, want %+v", got, want)
	}
}
