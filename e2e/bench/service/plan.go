package service

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// endpoints is the number of endpoints. Each serves all addresses of a block of backends.
const endpoints = 3

// maxLanes is the largest number of lanes that the addresses allow.
const maxLanes = 64

var (
	// clients is the range of clients, both pods and outside. Each lane has a /24 of it.
	clients = netip.MustParsePrefix("198.18.0.0/18")
	// virtual is the range of service addresses.
	virtual = netip.MustParsePrefix("198.19.0.0/17")
)

// clientNet returns the network between the client and the node of a lane. clientAddr returns the
// client's address in it, nodeAddr the node's address.
func clientNet(lane int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(lane), 0}), 24)
}
func clientAddr(lane int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(lane), 2}) }
func nodeAddr(lane int) netip.Addr   { return netip.AddrFrom4([4]byte{198, 18, byte(lane), 1}) }

// wire returns the addresses of a node and an endpoint on the link between them.
func wire(lane, endpoint int) (node, end netip.Addr) {
	at := func(host int) netip.Addr {
		return netip.AddrFrom4([4]byte{198, 18, byte(maxLanes + lane), byte(4*endpoint + host)})
	}
	return at(1), at(2)
}

// block returns the prefix of the backend addresses that an endpoint serves.
func block(endpoint int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(128 + 32*endpoint), 0}), 19)
}

// backend returns the address of backend i. Consecutive backends are on different endpoints.
func backend(i int) netip.Addr {
	a := block(i % endpoints).Addr().As4()
	n := 1 + i/endpoints
	a[2] += byte(n >> 8)
	a[3] = byte(n)
	return netip.AddrFrom4(a)
}

// spread is an address that all endpoints serve. Clients reach it by routes, without a service.
var spread = netip.MustParseAddr("198.19.224.1")

// maxBackends is the number of backend addresses.
const maxBackends = endpoints * (1<<13 - 2)

// size is the size of a table.
type size struct {
	// services is the number of services in the table, including the measured ones.
	services int
	// backends is the number of backends of a measured service. Other services have one backend.
	backends int
}

func (s size) String() string {
	return fmt.Sprintf("%d services, %d endpoints", s.services, s.backends)
}

// within reports whether a table of size other has at least as many services and backends as s.
func (s size) within(other size) bool {
	return s.services <= other.services && s.backends <= other.backends
}

// measured lists the measured services. single marks the services of tools that need all
// connections at one endpoint; they have one backend.
var measured = []struct {
	name   string
	port   uint16
	single bool
}{{"http", portHTTP, false}, {"echo", portEcho, false}, {"ping", portSockperf, true},
	{"stream", portIperf, true}}

// plan returns the services of a table. The measured services are in the middle of the others.
func (s size) plan() []peer.Object {
	all := make([]peer.Object, 0, s.services)
	fill := max(0, s.services-len(measured))
	for i := range fill {
		if i == fill/2 {
			all = append(all, s.measured()...)
		}
		all = append(all, object(fmt.Sprintf("fill-%d", i), "p80", 80,
			virtualAddr(len(measured)+i), backend(i%maxBackends)))
	}
	if fill == 0 {
		return s.measured()
	}
	return all
}

// measured returns the measured services. Each also has the address of a load balancer.
func (s size) measured() []peer.Object {
	var out []peer.Object
	for i, m := range measured {
		n := s.backends
		if m.single {
			n = 1
		}
		var backends []netip.Addr
		for b := range n {
			backends = append(backends, backend(b))
		}
		o := object(m.name, "main", m.port, virtualAddr(i), backends...)
		o.Service.LoadBalancerIPs = []netip.Addr{externalAddr(i)}
		if m.port == portEcho {
			const name = "datagrams"
			o.Service.Ports = append(o.Service.Ports,
				service.Port{Name: name, Protocol: service.UDP, Port: m.port})
			o.Slice.Ports = append(o.Slice.Ports,
				service.SlicePort{Name: name, Protocol: service.UDP, Port: m.port})
		}
		out = append(out, o)
	}
	return out
}

// object returns a service with one port. Its backends are on another node and use the same port.
func object(name, port string, number uint16, clusterIP netip.Addr,
	backends ...netip.Addr) peer.Object {
	full := service.Name{Namespace: "bench", Name: name}
	o := peer.Object{
		Service: service.Service{Name: full, ClusterIPs: []netip.Addr{clusterIP},
			Ports: []service.Port{{Name: port, Protocol: service.TCP, Port: number}}},
		Slice: service.Slice{Service: full, Name: name + "-x7k2p",
			Ports: []service.SlicePort{{Name: port, Protocol: service.TCP, Port: number}}},
	}
	for _, b := range backends {
		o.Slice.Endpoints.Append(
			service.Endpoint{Addr: b, Node: "other", Ready: true, Serving: true})
	}
	return o
}

// virtualAddr returns the ClusterIP of service i. externalAddr returns the load balancer address of
// measured service i.
func virtualAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 19, byte((i + 1) >> 8), byte(i + 1)})
}
func externalAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 127, byte(i + 1)}) }

// maxServices is the largest number of services that the addresses allow.
const maxServices = 127<<8 - 1
