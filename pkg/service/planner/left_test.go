package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// tight has room for 256 backends.
var tight = service.Limits{Frontends: 256, BackendSlots: 512, SourceRanges: 16}

// large returns a service of n endpoints with every kind of entry that a service may leave in the
// maps.
func large(n int) (service.Service, service.Slice) {
	s := service.Service{
		Name: service.Name{Namespace: "shop", Name: "large"}, ClusterIPs: addrs("198.18.0.9"),
		LoadBalancerIPs: addrs("198.19.0.9"), Affinity: time.Hour,
		Ports:        []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 0}},
		SourceRanges: someRanges[:1],
	}
	slice := service.Slice{Service: s.Name, Name: "1", Ports: []service.SlicePort{{Name: "http",
		Protocol: service.TCP, Port: 8080}}}
	for i := range n {
		slice.Endpoints.Append(
			service.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 18, byte(4 + i>>8), byte(i)}),
				Ready:   true,
				Serving: true})
	}
	return s, slice
}

func (c *cluster) put(s service.Service, slice service.Slice) {
	c.planner.PutService(s)
	c.planner.PutSlice(slice)
}

// writeAll plans and writes until there is nothing to do.
func (c *cluster) writeAll(t *testing.T) {
	t.Helper()
	for {
		changes := c.planner.Plan()
		c.write(t, changes)
		if !changes.Again {
			return
		}
	}
}

// nextProcess replaces the planner by a new one. The caller puts the services again.
func (c *cluster) nextProcess(t *testing.T) {
	t.Helper()
	p, err := New("node-1", c.maps.limits)
	errtest.Must(t, err)
	c.planner = p
	p.Adopt(c.maps.state())
}

// If a service does not fit, its entries from an earlier process stay until it fits. If the service
// is deleted, all of them are removed at once.
func TestWhatWasLeftOfAServiceThatDoesNotFit(t *testing.T) {
	for name, then := range map[string]func(*Planner){
		"the service goes": func(p *Planner) {
			p.DeleteService(service.Name{Namespace: "shop", Name: "large"})
			p.DeleteSlice(service.Name{Namespace: "shop", Name: "large"}, "1")
		},
		"it fits again": func(p *Planner) {
			_, slice := large(3)
			p.PutSlice(slice)
		},
		"it has another port": func(p *Planner) {
			s, slice := large(300)
			s.Ports[0].Name, slice.Ports[0].Name = "other", "other"
			p.PutService(s)
			p.PutSlice(slice)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, tight)
			c.put(large(100))
			c.writeAll(t)
			was := c.view()
			c.nextProcess(t)
			c.put(large(300))

			for range 3 {
				c.writeAll(t)
			}

			if len(c.planner.Problems()) != 1 || difference(c.view(), was) != "" {
				t.Fatalf("problems %v; %s", c.planner.Problems(), difference(c.view(), was))
			}
			frontend := netip.MustParseAddrPort("198.18.0.9:80")
			if _, known := c.planner.At(frontend, service.TCP, service.Inside); known ||
				!c.planner.Keeps(frontend, service.TCP, service.Inside) ||
				c.planner.Keeps(frontend, service.UDP, service.Inside) {
				t.Errorf("the frontend is known: %t, and kept: %t", known,
					c.planner.Keeps(frontend, service.TCP, service.Inside))
			}

			then(c.planner)
			c.writeAll(t)
			if s, slice := large(3); name == "it fits again" {
				want := oracle("node-1", nil, []world{{s, []service.Slice{slice}, nil, ""}})
				if d := difference(c.view(), want); d != "" {
					t.Error(d)
				}
				c.planner.DeleteService(s.Name)
				c.planner.DeleteSlice(s.Name, slice.Name)
				c.writeAll(t)
			}

			c.writeAll(t) // what the last one freed
			if n := len(c.maps.frontends) + len(c.maps.sources) +
				len(c.planner.left) + len(c.planner.adopted); n != 0 {
				t.Errorf("%d things are left", n)
			}
			if want := buddy.New(tight.BackendSlots,
				service.APISlots); !c.planner.room.Equal(want) {
				t.Errorf("free blocks are %v, were %v", c.planner.room, want)
			}
		})
	}
}

// A change of another service neither walks the maps nor decides again about the service that does
// not fit.
func TestAServiceThatDoesNotFitCostsOthersNothing(t *testing.T) {
	for name, restart := range map[string]bool{"after a restart": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, tight)
			c.put(large(100))
			c.writeAll(t)
			if restart {
				c.nextProcess(t)
			}

			c.put(large(300))
			c.planner.PutService(webService(nil))
			c.writeAll(t)
			e := c.planner.entries[service.Name{Namespace: "shop", Name: "large"}]
			decided := e.want.groups[groupKey{port: "http", protocol: service.TCP}]
			if e.full == nil || decided == nil || c.planner.sweep {
				t.Fatalf("full: %v, decided: %v, all maps are walked: %t", e.full, decided,
					c.planner.sweep)
			}

			for i := range 3 {
				addr := netip.AddrFrom4([4]byte{198, 18, 1, byte(i + 1)})
				c.planner.PutSlice(service.Slice{Service: web, Name: "1",
					Ports: []service.SlicePort{{Name: "http", Protocol: service.TCP,
						Port: 8080}},
					Endpoints: service.EndpointsOf(service.Endpoint{Addr: addr, Ready: true})})
				c.writeAll(t)
				if got, want := c.backends("198.18.0.1:80", service.Inside),
					fmt.Sprintf("%s:8080+0", addr); got != want {
					t.Errorf("the other service has %q, want %q", got, want)
				}
			}

			if c.planner.sweep || e.want.groups[groupKey{port: "http",
				protocol: service.TCP}] != decided {
				t.Error("the service that does not fit was decided about again")
			}
			if got := c.backends("198.18.0.9:80", service.Inside); strings.Count(got,
				":8080") != 100 {
				t.Errorf("its backends are %s", got)
			}
		})
	}
}

// A service that waits for room gets the room that others free at once.
func TestRoomForWhoWaits(t *testing.T) {
	c := newCluster(t, tight)
	other, slice := large(100)
	other.Name, slice.Service = web, web
	other.LoadBalancerIPs, other.ClusterIPs = nil, addrs("198.18.0.1")
	c.put(other, slice)
	c.put(large(150))
	c.writeAll(t)
	if len(c.planner.Problems()) != 1 {
		t.Fatalf("problems %v", c.planner.Problems())
	}
	c.planner.DeleteService(web)
	c.planner.DeleteSlice(web, "1")
	c.writeAll(t)
	if p := c.planner.Problems(); len(p) != 0 || c.backends("198.18.0.9:80",
		service.Inside) == "none" {
		t.Errorf("after the deletion of the other service: %v", p)
	}
}

func TestAddressesConcernNodePortsOnly(t *testing.T) {
	c := newCluster(t, roomy)
	c.put(large(3))
	c.planner.PutService(webService(nil))
	c.planner.SetAPIServer(service.APIServer{})
	c.writeAll(t)
	c.planner.SetNodeAddrs(addrs("198.19.1.1"))
	if want := []service.Name{web}; !slices.Equal(c.planner.dirty.names(), want) {
		t.Errorf("decided again are %v, want %v", c.planner.dirty.names(), want)
	}
	c.writeAll(t)
	if got := c.backends("198.19.1.1:30080", service.Inside); got == "none" {
		t.Error("a NodePort is not at the node's address")
	}
	c.planner.SetNodeAddrs(addrs("198.19.1.1"))
	if c.planner.dirty.len() != 0 {
		t.Errorf("the same addresses, and decided again are %v", c.planner.dirty.names())
	}
}

// Entry 0 can be planned without any service, also after writes that failed.
func TestPlanOfEntryZeroAlone(t *testing.T) {
	c := newCluster(t, tight)
	api := service.APIServer{Frontends: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:443")},
		Backends: []netip.AddrPort{netip.MustParseAddrPort("198.19.0.1:6443")}}
	c.planner.SetAPIServer(api)
	c.put(large(100))
	c.writeAll(t)

	for i := range 2 * service.APIBlocks {
		if i%2 == 0 {
			c.planner.Adopt(c.maps.state())
		}

		api.Backends[0] = netip.AddrPortFrom(api.Backends[0].Addr().Next(), 6443)
		c.planner.SetAPIServer(service.APIServer{Frontends: api.Frontends,
			Backends: api.Backends[:1]})
		s, slice := large(100 - i)
		c.put(s, slice)
		changes := c.planner.PlanAPIServer()
		if len(changes.Frontends.Keys) != 1 || changes.Writes() != 2 {
			t.Errorf("entry 0 alone is %d writes: %+v", changes.Writes(), changes)
		}

		c.write(t, changes)
		if got, want := c.backends("198.18.0.1:443", service.Inside), api.Backends[0].String()+
			"+0"; got != want {
			t.Errorf("entry 0 has %q, want %q", got, want)
		}

		if i%2 == 1 {
			c.writeAll(t)
			if d := difference(c.view(), oracle("node-1", &api,
				[]world{{s, []service.Slice{slice}, nil, ""}})); d != "" {
				t.Error(d)
			}
		}
	}
}
