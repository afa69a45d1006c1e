package apiserver

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

const apiFrontend = "198.18.128.1:443"

func newServers(known Known) *Servers { return New(Options{Node: "node-1", Known: known}) }

func addrPorts(text ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range text {
		out = append(out, netip.MustParseAddrPort(a))
	}
	return out
}

// slice has the endpoints of a service, ready, at the port.
func slice(owner service.Name, portName string, port uint16, addrs ...string) service.Slice {
	s := service.Slice{Service: owner, Name: owner.Name + "-1",
		Ports: []service.SlicePort{{Name: portName, Protocol: service.TCP, Port: port}}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, service.Endpoint{Addr: netip.MustParseAddr(a),
			Node: "node-1", Ready: true, Serving: true})
	}
	return s
}

// wait until f is so.
func wait(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	t.Cleanup(func() {
		if t.Failed() && err != nil {
			t.Logf("%s: %v", what, err)
		}
	})
	nettest.Until(t, 10*time.Second, what, func() bool {
		err = f()
		return err == nil
	})
}

// report passes an observation that has only whether the server answers.
func (a *Servers) report(addr netip.AddrPort, up bool) bool {
	return a.observe(addr, observation{up: up}, time.Now())
}
