package planner

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestSizes(t *testing.T) {
	p, err := New("node-1", service.Limits{Frontends: 64, BackendSlots: 1024,
		SourceRanges: 64})
	if err != nil {
		t.Fatal(err)
	}

	name := service.Name{Namespace: "test", Name: "dns"}
	p.PutService(service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("198.18.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("198.18.0.2")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16")},
		Ports: []service.Port{{Name: "dns", Protocol: service.UDP, Port: 53,
			NodePort: 0}},
	})

	slice := service.Slice{Service: name, Name: "1", Ports: []service.SlicePort{{Name: "dns",
		Protocol: service.UDP, Port: 53}}}
	for _, a := range []string{"198.18.1.1", "198.18.1.2", "198.18.1.3"} {
		slice.Endpoints.Append(service.Endpoint{Addr: netip.MustParseAddr(a), Ready: true,
			Serving: true})
	}

	p.PutSlice(slice)
	p.Plan()
	if got, want := p.Sizes(), (service.Limits{Frontends: 3, BackendSlots: service.APISlots + 4,
		SourceRanges: 1}); got != want {
		t.Errorf("with a service: %+v, want %+v", got, want)
	}

	p.DeleteService(name)
	p.Plan()
	if got, want := p.Sizes(), (service.Limits{BackendSlots: service.APISlots}); got != want {
		t.Errorf("without: %+v, want %+v", got, want)
	}
}
