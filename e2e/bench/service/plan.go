package service

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// endpoints is the number of endpoints; each serves all addresses of a block of backends.
const endpoints = 3

// maxLanes is the number of lanes for which the addresses are enough.
const maxLanes = 64

var (
	// pods, and clients outside; a /24 for each lane
	clients = netip.MustParsePrefix("198.18.0.0/18")
	virtual = netip.MustParsePrefix("198.19.0.0/17") // services
)

// clientNet returns the network between client and node of a lane, clientAddr the client's address,
// nodeAddr the node's address.
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

// block is the addresses of backends that an endpoint serves.
func block(endpoint int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(128 + 32*endpoint), 0}), 19)
}

// backend is the i-th address of backends, spread over the endpoints in turns.
func backend(i int) netip.Addr {
	a := block(i % endpoints).Addr().As4()
	n := 1 + i/endpoints
	a[2] += byte(n >> 8)
	a[3] = byte(n)
	return netip.AddrFrom4(a)
}

// spread is an address that all endpoints serve, by routes and without a service.
var spread = netip.MustParseAddr("198.19.224.1")

// maxBackends is how many addresses of backends there are.
const maxBackends = endpoints * (1<<13 - 2)

// size is the number of entries of a table.
type size struct {
	// services in the table, those that are measured among them.
	services int
	// backends of the services that are measured; others have one.
	backends int
}

func (s size) String() string {
	return fmt.Sprintf("%d services, %d endpoints", s.services, s.backends)
}

// measured lists the measured services by their port. A service of a tool that needs all
// connections at one endpoint has one endpoint.
var measured = []struct {
	name   string
	port   uint16
	single bool
}{{"http", portHTTP, false}, {"echo", portEcho, false}, {"ping", portSockperf, true},
	{"stream", portIperf, true}}

// plan makes the services: those that are measured stand in the middle of the others.
func (s size) plan() []rules.Service {
	all := make([]rules.Service, 0, s.services)
	fill := max(0, s.services-len(measured))
	for i := range fill {
		if i == fill/2 {
			all = append(all, s.measured()...)
		}
		all = append(all, rules.Service{
			Namespace: "bench", Name: fmt.Sprintf("fill-%d", i), Port: "p80", Number: 80,
			Target:    80,
			ClusterIP: virtualAddr(len(measured) + i),
			Backends:  []netip.Addr{backend(i % maxBackends)}, Idle: true,
		})
	}
	if fill == 0 {
		return s.measured()
	}
	return all
}

func (s size) measured() []rules.Service {
	var out []rules.Service
	for i, m := range measured {
		svc := rules.Service{
			Namespace: "bench", Name: m.name, Port: "main", Number: m.port, Target: m.port,
			ClusterIP: virtualAddr(i), External: externalAddr(i),
		}
		n := s.backends
		if m.single {
			n = 1
		}
		for b := range n {
			svc.Backends = append(svc.Backends, backend(b))
		}
		out = append(out, svc)
	}
	return out
}

// virtualAddr is the i-th ClusterIP, externalAddr the address of a balancer of the i-th measured
// service.
func virtualAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 19, byte((i + 1) >> 8), byte(i + 1)})
}
func externalAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 127, byte(i + 1)}) }

// maxServices is how many services the addresses are enough for.
const maxServices = 127<<8 - 1

// rulesNode is the node of a lane as kube-proxy sees it.
func rulesNode(lane int) rules.Node {
	return rules.Node{Pods: clients, Services: virtual, Addrs: []netip.Addr{nodeAddr(lane)}}
}

// decoded returns a service as pkg/service takes it from an API server.
func decoded(s rules.Service) (service.Service, service.Slice) {
	name := service.Name{Namespace: s.Namespace, Name: s.Name}
	svc := service.Service{Name: name, ClusterIPs: []netip.Addr{s.ClusterIP},
		Ports: []service.Port{{Name: s.Port, Protocol: service.TCP, Port: s.Number}}}
	if s.External.IsValid() {
		svc.LoadBalancerIPs = []netip.Addr{s.External}
	}
	slice := service.Slice{Service: name, Name: s.Name + "-1",
		Ports: []service.SlicePort{{Name: s.Port, Protocol: service.TCP, Port: s.Target}}}
	for _, b := range s.Backends {
		slice.Endpoints = append(slice.Endpoints,
			service.Endpoint{Addr: b, Node: "other", Ready: true, Serving: true})
	}
	return svc, slice
}
