package keeper

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
	"github.com/kubeveil/kubeveil/pkg/service/healthcheck"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// Confirmed frontends come first, then the frontends in the maps, then a guess.
func TestFrontendsBeforeAnyList(t *testing.T) {
	frontend := func(text string) service.APIServer {
		return service.APIServer{Frontends: nettest.AddrPorts(text),
			Backends: nettest.AddrPorts("198.18.0.1:6443")}
	}
	for name, c := range map[string]struct {
		before apiserver.Known
		maps   service.APIServer
		want   string
	}{
		"a guess": {apiserver.Known{Guessed: nettest.AddrPorts("198.18.128.1:443")},
			service.APIServer{}, "198.18.128.1:443"},
		"the maps and a guess": {apiserver.Known{Guessed: nettest.AddrPorts("198.18.128.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443"},
		"what is sure and a guess": {
			apiserver.Known{Frontends: nettest.AddrPorts("198.18.201.1:443"),
				Guessed: nettest.AddrPorts("198.18.128.1:443")},
			service.APIServer{}, "198.18.201.1:443"},
		"what is sure and the maps": {
			apiserver.Known{Frontends: nettest.AddrPorts("198.18.201.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443 198.18.201.1:443"},
		"the same twice": {apiserver.Known{Frontends: nettest.AddrPorts("198.18.200.1:443")},
			frontend("198.18.200.1:443"), "198.18.200.1:443"},
		"a family without servers": {
			apiserver.Known{Frontends: nettest.AddrPorts("198.18.201.1:443", "[fd42::1]:443")},
			service.APIServer{}, "198.18.201.1:443"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planner.New("node-1", limits)
			errtest.Must(t, err)

			p.SetAPIServer(c.maps)
			table := newFakeTable()
			errtest.Must(t, table.Apply(p.Plan()))

			begin(t, table, func(o *ServiceConfig) {
				o.API.Known = c.before
				o.API.Known.Configured = nettest.AddrPorts("198.18.0.1:6443")
			})
			state, err := table.State()
			errtest.Must(t, err)

			var got []string
			for k := range state.Frontends {
				got = append(got, k.AddrPort().String())
			}

			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("entry 0 is at %q, want %q", got, c.want)
			}
		})
	}
}

// A server that the last process had found dead counts as dead until it answers.
func TestServersThatWereDeadBeforeARestart(t *testing.T) {
	table := newFakeTable()
	_, probes, stop := begin(t, table, nil)
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	stop()
	_, probes, _ = begin(t, table, nil)
	if got, want := table.backends(apiFrontend), "198.18.0.2:6443"; got != want {
		t.Errorf("entry 0 begins with %q, want %q", got, want)
	}
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, apiFrontend, "198.18.0.1:6443 198.18.0.2:6443")
}

// While writes of services fail, entry 0 still follows its servers at once.
func TestEntryZeroWhileWritesFail(t *testing.T) {
	table := newFakeTable()
	p, probes, _ := begin(t, table, nil, func(p *Keeper) { p.loop.RetryMin = time.Hour })
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.1:8080")
	table.setRefuse(func(c service.Changes) bool {
		return slices.ContainsFunc(c.Frontends.Keys,
			func(k service.FrontendKey) bool { return k.AddrPort().String() == webFrontend })
	})
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.2"))
	servicetest.Wait(t, "failure", func() error {
		if p.Status().Failed == "" {
			return fmt.Errorf("the status has no error")
		}
		return nil
	})
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" {
		t.Errorf("the service that cannot be written has %q", got)
	}
	table.setRefuse(nil)
	probes.say(t, "198.18.0.1:6443", true)
	table.waitBackends(t, webFrontend, "198.18.1.2:8080")
}

// A table that could not take over the table in force is attached once it is complete.
func TestFreshTable(t *testing.T) {
	table := newFakeTable()
	table.fresh = true
	p, probes, _ := begin(t, table, nil)
	probes.say(t, "198.18.0.1:6443", false)
	table.waitBackends(t, apiFrontend, "198.18.0.2:6443")
	if n := table.attaches(); n != 0 {
		t.Fatalf("attached %d times before the services are listed", n)
	}
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	p.Listed()
	<-p.Attached()
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" || table.attaches() != 1 {
		t.Errorf("attached %d times, with %q", table.attaches(), got)
	}
}

// A program that uses a healthCheckNodePort, such as a kube-proxy that is being replaced, ends. No
// service changes meanwhile.
func TestHealthPortThatBecomesFree(t *testing.T) {
	var taken atomic.Bool
	taken.Store(true)
	p, _, _ := begin(t, newFakeTable(), nil, func(p *Keeper) {
		p.health = healthcheck.New("node-1", "", p.log, func(string) (net.Listener, error) {
			if taken.Load() {
				return nil, errors.New("address in use")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		})
	})
	local := webService()
	local.ExternalLocal, local.HealthCheckNodePort = true, 31000
	p.PutService(local)
	p.Listed()
	problems := func(n int) func() error {
		return func() error {
			if got := p.health.Problems(); len(got) != n {
				return fmt.Errorf("problems %q", got)
			}
			return nil
		}
	}
	servicetest.Wait(t, "problem", problems(1))
	taken.Store(false)
	servicetest.Wait(t, "end of the problem", problems(0))
}
