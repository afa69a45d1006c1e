// Package servicetest has services, their endpoints and their clients for tests of several
// packages. Only tests import it.
package servicetest

import (
	"bufio"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// Limits are sizes of a table that cost nothing.
var Limits = service.Limits{Frontends: 256, BackendSlots: 4096, SourceRanges: 256}

// Patience is how long a client waits for a connection or an answer.
const Patience = 10 * time.Second

// Quiet returns a logger that discards.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Named returns a service on ports 80 (TCP, to 8080) and 53 (UDP, to 5353).
func Named(name string, addrs ...string) service.Service {
	return service.Service{
		Name: service.Name{Namespace: "test", Name: name}, ClusterIPs: nettest.Addrs(addrs...),
		Ports: []service.Port{{Name: "web", Protocol: service.TCP, Port: 80},
			{Name: "dns", Protocol: service.UDP, Port: 53}},
	}
}

// SliceOf returns the only slice of a service; its endpoints are ready.
func SliceOf(name string, addrs ...string) service.Slice {
	s := service.Slice{
		Service: service.Name{Namespace: "test", Name: name}, Name: "1",
		Ports: []service.SlicePort{{Name: "web", Protocol: service.TCP, Port: 8080},
			{Name: "dns", Protocol: service.UDP, Port: 5353}},
	}
	for _, a := range nettest.Addrs(addrs...) {
		s.Endpoints.Append(service.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	return s
}

// ReadySlice returns the only slice of a service, with one port. Its endpoints are ready, on the
// node "node-1".
func ReadySlice(owner service.Name, portName string, port uint16, addrs ...string) service.Slice {
	s := service.Slice{Service: owner, Name: owner.Name + "-1",
		Ports: []service.SlicePort{{Name: portName, Protocol: service.TCP, Port: port}}}
	for _, a := range nettest.Addrs(addrs...) {
		s.Endpoints.Append(service.Endpoint{Addr: a, Node: "node-1", Ready: true,
			Serving: true})
	}
	return s
}

// Wait waits until f returns nil. A test that fails shows the last error.
func Wait(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	t.Cleanup(func() {
		if t.Failed() && err != nil {
			t.Logf("%s: %v", what, err)
		}
	})
	nettest.Until(t, Patience, what, func() bool {
		err = f()
		return err == nil
	})
}

// Converse sends a line or a datagram and returns the line that comes back.
func Converse(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("?\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Place puts all endpoints of a slice on a node.
func Place(s *service.Slice, node string) {
	var placed service.Endpoints
	for e := range s.Endpoints.All() {
		e.Node = node
		placed.Append(e)
	}
	s.Endpoints = placed
}
