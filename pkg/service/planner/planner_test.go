package planner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

var web = service.Name{Namespace: "shop", Name: "web"}

// endpoint returns an endpoint on node-1 in the named state.
func endpoint(addr, state string) service.Endpoint {
	ep := service.Endpoint{Addr: netip.MustParseAddr(addr), Node: "node-1"}
	switch strings.TrimSuffix(state, " elsewhere") {
	case "ready":
		ep.Ready, ep.Serving = true, true
	case "terminating":
		ep.Serving, ep.Terminating = true, true
	case "dead":
		ep.Terminating = true
	}
	if strings.HasSuffix(state, " elsewhere") {
		ep.Node = "node-2"
	}
	return ep
}

func webService(change func(*service.Service)) service.Service {
	s := service.Service{Name: web, ClusterIPs: addrs("198.18.0.1"),
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080}}}
	if change != nil {
		change(&s)
	}
	return s
}

// planned returns the table of one service on node-1, whose address is 198.19.1.1.
func planned(t *testing.T, s service.Service, endpoints ...service.Endpoint) *cluster {
	t.Helper()
	c := newCluster(t, roomy)
	c.planner.SetNodeAddrs(addrs("198.19.1.1"))
	c.planner.PutService(s)
	slice := service.Slice{Service: s.Name, Name: "1", Endpoints: service.EndpointsOf(endpoints...)}
	for _, p := range s.Ports {
		slice.Ports = append(slice.Ports, service.SlicePort{Name: p.Name, Protocol: p.Protocol,
			Port: 8080})
	}
	c.planner.PutSlice(slice)
	c.write(t, c.planner.Plan())
	return c
}

func (c *cluster) write(t *testing.T, changes service.Changes) {
	t.Helper()
	for _, w := range c.maps.writes(changes) {
		if err := w(); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) backends(addr string, scope service.Scope) string {
	k := service.MakeFrontendKey(netip.MustParseAddrPort(addr), service.TCP, scope)
	f, ok := c.maps.frontends[k]
	if !ok {
		return "none"
	}
	text := chosen(c.maps.show(k))
	if f.Flags&service.FlagDrop != 0 {
		text += "drop"
	}
	return text
}

func TestBackendsBySituation(t *testing.T) {
	externalLocal := func(s *service.Service) { s.ExternalLocal = true }

	for name, c := range map[string]struct {
		change    func(*service.Service)
		endpoints []service.Endpoint
		frontend  string
		scope     service.Scope
		want      string
	}{
		"ready ones only": {
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready"),
				endpoint("198.18.1.2", "terminating"), endpoint("198.18.1.3", "not ready")},
			frontend: "198.18.0.1:80", want: "198.18.1.1:8080+1",
		},
		"terminating ones when nothing is ready": {
			endpoints: []service.Endpoint{endpoint("198.18.1.2", "terminating"),
				endpoint("198.18.1.3", "dead")},
			frontend: "198.18.0.1:80", want: "198.18.1.2:8080+1",
		},
		"no endpoints refuse": {frontend: "198.18.0.1:80", want: ""},
		"a cluster address is not for callers outside": {
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready")},
			frontend:  "198.18.0.1:80",
			scope:     service.Outside, want: "none",
		},
		"a node port outside under the policy Local": {
			change: externalLocal, endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready"),
				endpoint("198.18.1.2", "ready elsewhere")},
			frontend: "198.19.1.1:30080", scope: service.Outside, want: "198.18.1.1:8080+1",
		},
		"a node port inside under the policy Local": {
			change: externalLocal, endpoints: []service.Endpoint{endpoint("198.18.1.1",
				"ready elsewhere")},
			frontend: "198.19.1.1:30080", want: "198.18.1.1:8080+0",
		},
		"the policy Local drops when all are elsewhere": {
			change: externalLocal, endpoints: []service.Endpoint{endpoint("198.18.1.1",
				"ready elsewhere")},
			frontend: "198.19.1.1:30080", scope: service.Outside, want: "drop",
		},
		"the policy Local refuses when there are none at all": {
			change: externalLocal, frontend: "198.19.1.1:30080", scope: service.Outside, want: "",
		},
		"the policy Local prefers its own terminating one": {
			change: externalLocal, endpoints: []service.Endpoint{endpoint("198.18.1.1",
				"terminating"),
				endpoint("198.18.1.2", "ready elsewhere")},
			frontend: "198.19.1.1:30080", scope: service.Outside, want: "198.18.1.1:8080+1",
		},
		"the internal policy Local": {
			change: func(s *service.Service) { s.InternalLocal = true },
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready"),
				endpoint("198.18.1.2", "ready elsewhere")},
			frontend: "198.18.0.1:80", want: "198.18.1.1:8080+1",
		},
		"headless": {
			change:    func(s *service.Service) { s.ClusterIPs = nil },
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready")},
			frontend:  "198.18.0.1:80", want: "none",
		},
		"an endpoint nobody can reach": {
			endpoints: []service.Endpoint{endpoint("127.0.0.1", "ready"),
				endpoint("169.254.169.254", "ready"), endpoint("198.18.1.1", "ready")},
			frontend: "198.18.0.1:80", want: "198.18.1.1:8080+1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planned(t, webService(c.change), c.endpoints...).backends(c.frontend,
				c.scope); got != c.want {
				t.Errorf("%s has %q, want %q", c.frontend, got, c.want)
			}
		})
	}
}

func TestOneChangeWritesOneService(t *testing.T) {
	c := planned(t, webService(nil), endpoint("198.18.1.1", "ready"),
		endpoint("198.18.1.2", "ready"))
	for i := range 20 {
		n := service.Name{Namespace: "other", Name: fmt.Sprint(i)}
		c.planner.PutService(service.Service{Name: n,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 9, byte(i + 1)})},
			Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80,
				NodePort: 0}}})
	}
	c.write(t, c.planner.Plan())
	c.planner.PutSlice(service.Slice{Service: web, Name: "1",
		Ports:     []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 8080}},
		Endpoints: service.EndpointsOf(endpoint("198.18.1.2", "ready"))})
	changes := c.planner.Plan()
	// The cluster address, and the node port inside and outside.
	if changes.Slots() != 1 || len(changes.Frontends.Keys) != 3 ||
		changes.Writes() != 4 {
		t.Errorf("one endpoint less writes %+v", changes)
	}
}

func TestFlowsOfUDPDrain(t *testing.T) {
	s := service.Service{Name: web, ClusterIPs: addrs("198.18.0.1"),
		Ports: []service.Port{{Name: "dns", Protocol: service.UDP, Port: 53, NodePort: 0}}}
	c := planned(t, s, endpoint("198.18.1.1", "ready"), endpoint("198.18.1.2", "ready"))
	put := func(ep ...service.Endpoint) service.Changes {
		c.planner.PutSlice(service.Slice{Service: web, Name: "1",
			Ports:     []service.SlicePort{{Name: "dns", Protocol: service.UDP, Port: 8080}},
			Endpoints: service.EndpointsOf(ep...)})
		changes := c.planner.Plan()
		c.write(t, changes)
		return changes
	}
	if d := put(endpoint("198.18.1.1", "terminating"), endpoint("198.18.1.2",
		"ready")); d.LostUDP ||
		d.Frontends.Values[0].Count != 1 || d.Frontends.Values[0].Draining != 1 {
		t.Errorf("a backend that terminates does not drain: %+v", d)
	}
	if d := put(endpoint("198.18.1.2", "ready")); !d.LostUDP ||
		d.Frontends.Values[0].Draining != 0 {
		t.Errorf("a drained backend that goes keeps its flows: %+v", d)
	}
	if d := put(endpoint("198.18.1.2", "ready"), endpoint("198.18.1.3", "ready")); d.LostUDP {
		t.Errorf("another backend ends flows: %+v", d)
	}
}

func TestSourceRangesAreOfBalancersOutside(t *testing.T) {
	c := planned(t, webService(func(s *service.Service) {
		s.LoadBalancerIPs = addrs("198.19.0.1")
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("fd42::/32")}
	}), endpoint("198.18.1.1", "ready"))
	for addr, want := range map[string]bool{"198.19.0.1:80": true, "198.19.1.1:30080": false} {
		f := c.maps.frontends[service.MakeFrontendKey(netip.MustParseAddrPort(addr), service.TCP,
			service.Outside)]
		if (f.Sources != 0) != want {
			t.Errorf("%s is limited to sources: %v", addr, f.Sources != 0)
		}
		if f := c.maps.frontends[service.MakeFrontendKey(netip.MustParseAddrPort(addr), service.TCP,
			service.Inside)]; f.Sources != 0 {
			t.Errorf("%s is limited inside", addr)
		}
	}
	if len(c.maps.sources) != 0 {
		t.Error("an IPv6 range admits an IPv4 client")
	}
}

func TestAffinityOutlivesItsBackends(t *testing.T) {
	key := service.MakeFrontendKey(netip.MustParseAddrPort("198.18.0.1:80"), service.TCP,
		service.Inside)
	s := webService(func(s *service.Service) { s.Affinity = 1500 * time.Millisecond })
	a := planned(t, s, endpoint("198.18.1.1", "ready")).maps.frontends[key]
	b := planned(t, s, endpoint("198.18.1.2", "ready")).maps.frontends[key]
	if a.Group != b.Group || a.Group == 0 || a.Affinity != 2 {
		t.Errorf("groups %x and %x, affinity of %d seconds", a.Group, b.Group, a.Affinity)
	}
}

func TestProblemsNameTheServiceAndTheWayOut(t *testing.T) {
	c := newCluster(t, service.Limits{Frontends: 256, BackendSlots: 512, SourceRanges: 1})
	port := []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 0}}
	older := service.Service{Name: service.Name{Namespace: "a", Name: "older"},
		Created:     time.Unix(1, 0),
		ExternalIPs: addrs("198.19.0.1"), Ports: port}
	younger := service.Service{Name: service.Name{Namespace: "a", Name: "a"}, Created: time.Unix(2,
		0),
		ExternalIPs: addrs("198.19.0.1"), Ports: port}
	large := service.Service{Name: service.Name{Namespace: "b", Name: "large"},
		ClusterIPs: addrs("198.18.0.9"), Ports: port}

	slice := service.Slice{Service: large.Name, Name: "1",
		Ports: []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 80}}}
	for i := range 300 {
		slice.Endpoints.Append(
			service.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 18, 4 + byte(i>>8), byte(i)}),
				Ready: true})
	}

	c.planner.PutService(older)
	c.planner.PutService(younger)
	c.planner.PutService(large)
	c.planner.PutSlice(slice)
	c.planner.PutService(service.Service{Name: service.Name{Namespace: "c", Name: "signals"},
		ClusterIPs: addrs("198.18.0.8"),
		Ports:      []service.Port{{Name: "s", Protocol: service.SCTP, Port: 9, NodePort: 0}}})
	c.write(t, c.planner.Plan())

	var got []string
	for _, err := range c.planner.Problems() {
		got = append(got, err.Error())
	}

	want := []string{
		"service a/a: TCP 198.19.0.1:80: frontend is taken by service a/older: use another address or port",
		"service b/large: table of services is full: it needs 512 free entries of 512, and keeps " +
			"its earlier backends until then; raise services.limits.backendSlots",
		"service c/signals: port 9: SCTP is not supported by veild: only another proxy can serve it",
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems are:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	for i, class := range []error{service.ErrConflict, service.ErrFull, service.ErrNotSupported} {
		if !errors.Is(c.planner.Problems()[i], class) {
			t.Errorf("error %q does not match %q", got[i], class)
		}
	}

	c.planner.DeleteService(older.Name)
	c.write(t, c.planner.Plan())
	if got := len(c.planner.Problems()); got != 2 {
		t.Errorf("%d problems after the owner of the frontend went, want 2", got)
	}
}

func TestEntryZeroFitsInAFullTable(t *testing.T) {
	c := newCluster(t, service.Limits{Frontends: 48, BackendSlots: 512, SourceRanges: 1})
	for i := range 100 {
		n := service.Name{Namespace: "a", Name: fmt.Sprint(i)}
		c.planner.PutService(service.Service{Name: n,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 9, byte(i + 1)})},
			Ports:      somePorts[:1]})
	}

	c.write(t, c.planner.Plan())
	if len(c.maps.frontends) != 16 || len(c.planner.Problems()) != 84 {
		t.Fatalf("%d frontends and %d problems", len(c.maps.frontends), len(c.planner.Problems()))
	}

	api := service.APIServer{Frontends: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:443"),
		netip.MustParseAddrPort("[fd42::1]:443")}}
	for i := range 2 * service.MaxAPIServers {
		api.Backends = append(api.Backends,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 19, 1,
				byte(2*service.MaxAPIServers - i)}),
				6443))
	}

	for range 5 {
		c.planner.SetAPIServer(api)
		c.write(t, c.planner.Plan())
		f := c.maps.frontends[service.MakeFrontendKey(api.Frontends[0], service.TCP,
			service.Inside)]
		if f.Count != uint32(min(service.MaxAPIServers, len(api.Backends))) ||
			f.First+f.Count > service.APISlots {
			t.Errorf("entry 0 is at %d, %d long", f.First, f.Count)
		}
		if got := c.backends("[fd42::1]:443", service.Inside); got != "" {
			t.Errorf("servers of IPv4 serve IPv6: %s", got)
		}
		api.Backends = api.Backends[:len(api.Backends)/2]
	}
}

func TestLimitsThatCannotBe(t *testing.T) {
	for name, l := range map[string]service.Limits{
		"none":                {},
		"no power of two":     {Frontends: 256, BackendSlots: 1000, SourceRanges: 1},
		"no room but entry 0": {Frontends: 256, BackendSlots: 256, SourceRanges: 1},
		"few frontends":       {Frontends: 40, BackendSlots: 1024, SourceRanges: 1},
		"no source ranges":    {Frontends: 256, BackendSlots: 1024},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New("node-1", l); !errors.Is(err, service.ErrLimits) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := New("node-1", service.DefaultLimits); err != nil {
		t.Error(err)
	}
}

func TestExternalAddressesCannotClaimTunnelsOrAPIServers(t *testing.T) {
	tunnel, server := netip.MustParseAddrPort("198.19.1.2:51820"),
		netip.MustParseAddrPort("198.19.1.3:6443")
	silent := netip.MustParseAddrPort("198.19.1.4:6443")
	udp := []service.Port{{Name: "wg", Protocol: service.UDP, Port: 51820, NodePort: 0}}
	for name, c := range map[string]struct {
		change   func(*service.Service)
		frontend netip.AddrPort
		proto    service.Protocol
		want     bool
	}{
		"external IP, tunnel of a node": {
			change: func(s *service.Service) {
				s.ExternalIPs, s.Ports = addrs("198.19.1.2"), udp
			}, frontend: tunnel, proto: service.UDP,
		},
		"LoadBalancer IP, tunnel of a node": {
			change: func(s *service.Service) {
				s.LoadBalancerIPs, s.Ports = addrs("198.19.1.2"), udp
			}, frontend: tunnel, proto: service.UDP,
		},
		"external IP, IPv4 mapped into IPv6": {
			change: func(s *service.Service) {
				s.ExternalIPs, s.Ports = addrs("::ffff:198.19.1.2"), udp
			}, frontend: tunnel, proto: service.UDP,
		},
		"external IP, API server": {
			change: func(s *service.Service) {
				s.ExternalIPs, s.Ports = addrs("198.19.1.3"), []service.Port{{Name: "x",
					Protocol: service.TCP, Port: 6443, NodePort: 0}}
			}, frontend: server, proto: service.TCP,
		},
		"external IP, API server that does not answer": {
			change: func(s *service.Service) {
				s.ExternalIPs, s.Ports = addrs("198.19.1.4"), []service.Port{{Name: "x",
					Protocol: service.TCP, Port: 6443, NodePort: 0}}
			}, frontend: silent, proto: service.TCP,
		},
		"the node's address with another port": {
			change: func(s *service.Service) {
				s.LoadBalancerIPs, s.Ports = addrs("198.19.1.2"), []service.Port{{Name: "x",
					Protocol: service.UDP, Port: 53, NodePort: 0}}
			},
			frontend: netip.MustParseAddrPort("198.19.1.2:53"), proto: service.UDP, want: true,
		},
		"the tunnel's port by the other protocol": {
			change: func(s *service.Service) {
				s.ExternalIPs, s.Ports = addrs("198.19.1.2"), []service.Port{{Name: "x",
					Protocol: service.TCP, Port: 51820, NodePort: 0}}
			},
			frontend: tunnel, proto: service.TCP, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, late := range []bool{false, true} {
				c0 := newCluster(t, roomy)
				known := func() {
					c0.planner.SetTunnels([]netip.AddrPort{tunnel})
					c0.planner.SetAPIServer(service.APIServer{Backends: []netip.AddrPort{server},
						Reserved: []netip.AddrPort{silent}})
				}
				if !late {
					known()
				}

				c0.planner.PutService(webService(c.change))
				c0.write(t, c0.planner.Plan())
				if late {
					known()
					c0.write(t, c0.planner.Plan())
				}

				for _, scope := range []service.Scope{service.Inside, service.Outside} {
					if _, got := c0.maps.frontends[service.MakeFrontendKey(c.frontend, c.proto,
						scope)]; got !=
						c.want {
						t.Errorf("known late %v, scope %v: served %v, want %v", late, scope, got,
							c.want)
					}
				}

				refused := slices.ContainsFunc(c0.planner.Problems(),
					func(err error) bool { return errors.Is(err, service.ErrReserved) })
				if refused == c.want {
					t.Errorf("known late %v: problems %v", late, c0.planner.Problems())
				}
			}
		})
	}
}
