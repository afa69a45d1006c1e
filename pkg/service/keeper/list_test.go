package keeper

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// heldTable is a fakeTable whose writes of services wait for the test. Writes of entry 0 do not.
type heldTable struct {
	*fakeTable
	began, goOn chan struct{}
	free        chan struct{} // closed when writes do not wait any more
}

func (h heldTable) Apply(c service.Changes) error {
	if !slices.ContainsFunc(c.Frontends.Keys, func(k service.FrontendKey) bool {
		return k.AddrPort() == netip.MustParseAddrPort(apiFrontend)
	}) && !c.Empty() {
		select {
		case h.began <- struct{}{}:
		case <-h.free:
		}
		select {
		case <-h.goOn:
		case <-h.free:
		}
	}
	return h.fakeTable.Apply(c)
}

// listed returns a service of a list and its slice of 1,000 endpoints, and its address.
func listed(i int) (service.Service, service.Slice, string) {
	s := webService()
	s.Name.Name = fmt.Sprint("listed-", i)
	s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 129, byte(i)})}
	slice := service.Slice{Service: s.Name, Name: "1",
		Ports: []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 8080}}}
	for j := range 1000 {
		slice.Endpoints.Append(service.Endpoint{Ready: true, Serving: true,
			Addr: netip.AddrFrom4([4]byte{198, 19, byte(j >> 8), byte(j)})})
	}
	return s, slice, netip.AddrPortFrom(s.ClusterIPs[0], 80).String()
}

// While a list of 100,000 endpoints is written, a change of an API server and a change of a service
// are in force after the part of the list that is being written, before the rest of it.
func TestChangesDoNotWaitForTheRestOfAList(t *testing.T) {
	table := heldTable{newFakeTable(), make(chan struct{}), make(chan struct{}),
		make(chan struct{})}
	table.slots = make([]service.Backend, 1<<18)
	k, probes, _ := begin(t, table.fakeTable, func(c *ServiceConfig) {
		c.Table, c.Limits.BackendSlots = table, 1<<18
	})
	free := sync.OnceFunc(func() { close(table.free) })
	t.Cleanup(free)

	k.Listed()
	var all []string
	for i := range 100 {
		s, slice, addr := listed(i + 1)
		k.PutService(s)
		k.PutSlice(slice)
		all = append(all, addr)
	}
	missing := func() (n int) {
		for _, addr := range all {
			if b := table.backends(addr); b == "none" || b == "" {
				n++
			}
		}
		return n
	}

	<-table.began // the first part of the list, which may be small
	table.goOn <- struct{}{}
	<-table.began // the second part
	probes.say(t, "198.18.0.1:6443", false)
	k.PutService(webService())
	k.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	table.goOn <- struct{}{}

	<-table.began // entry 0 is written by now
	if got := table.backends(apiFrontend); got != "198.18.0.2:6443" {
		t.Errorf("entry 0 is %q while a list is written", got)
	}
	table.goOn <- struct{}{}
	<-table.began // the part with the changed service is written by now
	if got := table.backends(webFrontend); got != "198.18.1.1:8080" {
		t.Errorf("a change is %q while a list is written", got)
	}
	if missing() == 0 {
		t.Error("the list is written before the change")
	}

	free()
	servicetest.Wait(t, "the list", func() error {
		if n := missing(); n > 0 {
			return fmt.Errorf("%d services are missing", n)
		}
		return nil
	})
}
