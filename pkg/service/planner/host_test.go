package planner

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// hosts returns entry 0 with two servers of IPv4 and one of IPv6. The first server is also a
// frontend for the host.
func hosts(named ...string) service.APIServer {
	return service.APIServer{Frontends: nettest.AddrPorts("198.18.0.10:443", "[fd42::10]:443"),
		Backends: nettest.AddrPorts("198.19.1.1:6443", "198.19.1.2:6443", "[fd42:8::1]:6443"),
		Host: []service.HostFrontend{
			{Addr: netip.MustParseAddrPort("198.19.1.1:6443"),
				Backends: nettest.AddrPorts(named...)},
			{Addr: netip.MustParseAddrPort("[fd42:8::9]:6443"),
				Backends: nettest.AddrPorts("[fd42:8::1]:6443",
					"198.19.1.2:6443")}}}
}

// A frontend for the host has its own backends, may have a server's address, and does not exist for
// pods and packets. Without backends it still exists, but programs do not translate it.
func TestFrontendsForTheHost(t *testing.T) {
	c := newCluster(t, roomy)
	c.planner.SetAPIServer(hosts("198.19.1.2:6443"))
	c.writeAll(t)
	for _, w := range []struct {
		addr  string
		scope service.Scope
		want  string
	}{
		{"198.18.0.10:443", service.Inside, "198.19.1.1:6443+0 198.19.1.2:6443+0"},
		{"198.19.1.1:6443", service.Host, "198.19.1.2:6443+0"},
		{"198.19.1.1:6443", service.Inside, "none"},
		{"198.19.1.1:6443", service.Outside, "none"},
		{"[fd42:8::9]:6443", service.Host, "[fd42:8::1]:6443+0"},
		{"198.18.0.10:443", service.Host, "none"},
	} {
		if got := c.backends(w.addr, w.scope); got != w.want {
			t.Errorf("%s %s leads to %q, want %q", w.addr, w.scope, got, w.want)
		}
	}

	c.planner.SetAPIServer(hosts())
	c.writeAll(t)
	if got := c.backends("198.19.1.1:6443", service.Host); got != "" {
		t.Errorf("without a server the address leads to %q", got)
	}
	c.planner.SetAPIServer(service.APIServer{})
	c.writeAll(t)
	if len(c.maps.frontends) > 0 {
		t.Errorf("left are %v", c.maps.frontends)
	}
}

// No service may redirect the host's connections to an address of services.apiFrontends, whether it
// is translated or not.
func TestFrontendsForTheHostAreReserved(t *testing.T) {
	for name, named := range map[string][]string{"translated": {"198.19.1.2:6443"},
		"not translated": nil} {
		c := newCluster(t, roomy)
		api := hosts(named...)
		api.Host[0].Addr = netip.MustParseAddrPort("198.19.1.9:6443")
		c.planner.SetAPIServer(api)
		c.planner.PutService(webService(func(s *service.Service) {
			s.ExternalIPs, s.Ports = addrs("198.19.1.9"), []service.Port{{Name: "x",
				Protocol: service.TCP, Port: 6443, NodePort: 0}}
		}))
		c.writeAll(t)
		if got := c.backends("198.19.1.9:6443", service.Inside); got != "none" {
			t.Errorf("%s: a service has the address: %q", name, got)
		}
		if p := c.planner.Problems(); len(p) != 1 || !errors.Is(p[0], service.ErrReserved) ||
			!strings.Contains(p[0].Error(), "services.apiFrontends") {
			t.Errorf("%s: problems %v", name, p)
		}
	}
}

// The next process finds the backends of the last one's frontends for the host in the maps. It
// keeps the frontends that it claims, and drops the others before services are listed.
func TestFrontendsForTheHostAreAdopted(t *testing.T) {
	c := newCluster(t, roomy)
	was := hosts("198.19.1.1:6443", "198.19.1.2:6443")
	c.planner.SetAPIServer(was)
	c.writeAll(t)
	got := c.maps.state().APIServer()
	was.Host[1].Backends = was.Host[1].Backends[:1] // the other backend is of the other family
	if !reflect.DeepEqual(got.Host, was.Host) || !reflect.DeepEqual(got.Backends, was.Backends) {
		t.Errorf("the maps have %+v", got)
	}

	c.nextProcess(t)
	c.planner.Hold(true)
	c.planner.SetAPIServer(was)
	if changes := c.planner.Plan(); !changes.Empty() {
		t.Errorf("the same frontends: %+v", changes)
	}
	was.Host = was.Host[1:]
	c.nextProcess(t)
	c.planner.Hold(true)
	c.planner.SetAPIServer(was)
	c.writeAll(t)
	if got := c.backends("198.19.1.1:6443", service.Host); got != "none" {
		t.Errorf("an address that is not configured any more leads to %q", got)
	}

	other := roomy
	other.BackendSlots *= 2
	resized := newMemory(other)
	changes, without := c.maps.state().Resize(other)
	for _, write := range resized.writes(changes) {
		errtest.Must(t, write())
	}
	if got := resized.state().APIServer(); without != 0 || !reflect.DeepEqual(got.Host, was.Host) {
		t.Errorf("after a resize %d have no room, and the others are %+v", without, got)
	}
}

// Without room for its backends, an address has none. Problems names it until there is room.
func TestFrontendsForTheHostWithoutRoom(t *testing.T) {
	c := newCluster(t, tight)
	c.put(large(200))
	c.writeAll(t)
	c.planner.SetAPIServer(hosts("198.19.1.1:6443", "198.19.1.2:6443"))
	c.writeAll(t)
	if got := c.backends("198.19.1.1:6443", service.Host); got != "" {
		t.Errorf("without room the address leads to %q", got)
	}
	if p := c.planner.Problems(); len(p) != 2 || !errors.Is(p[0], service.ErrFull) ||
		!strings.Contains(p[0].Error(),
			"services.apiFrontends: 198.19.1.1:6443 is not translated") {
		t.Errorf("problems %v", p)
	}
	if got, want := c.backends("198.18.0.10:443", service.Inside),
		"198.19.1.1:6443+0 198.19.1.2:6443+0"; got != want {
		t.Errorf("entry 0 has %q, want %q", got, want)
	}

	c.planner.DeleteService(service.Name{Namespace: "shop", Name: "large"})
	c.planner.DeleteSlice(service.Name{Namespace: "shop", Name: "large"}, "1")
	c.writeAll(t)
	if got, want := c.backends("198.19.1.1:6443", service.Host),
		"198.19.1.1:6443+0 198.19.1.2:6443+0"; got != want {
		t.Errorf("with room the address leads to %q, want %q", got, want)
	}
	if p := c.planner.Problems(); len(p) != 0 {
		t.Errorf("problems %v", p)
	}
}
