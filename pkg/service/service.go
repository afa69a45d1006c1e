package service

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Protocol is a transport protocol by its number (IANA).
type Protocol uint8

// The protocols of Kubernetes services. SCTP is refused.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol's name in Kubernetes, or its number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Name is the namespace and name of a service.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Service holds what the table needs from a Service. Headless services and those of type
// ExternalName have no frontends.
type Service struct {
	Name Name
	// Created decides between services that claim one frontend: the older gets it.
	Created time.Time
	// ClusterIPs are for clients in the cluster only. They determine the families of the
	// service; a service without any has both.
	ClusterIPs []netip.Addr
	// ExternalIPs and LoadBalancerIPs are for clients in the cluster and outside. LoadBalancerIPs
	// has only the addresses with ipMode VIP. BalancerIPs has those with ipMode Proxy, which no
	// program on a node translates.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	BalancerIPs     []netip.Addr
	// SourceRanges are the external clients that LoadBalancerIPs admit. An empty list admits any
	// client.
	SourceRanges []netip.Prefix
	Ports        []Port
	// Affinity is the timeout of sessionAffinity ClientIP, in whole seconds. Zero means no
	// affinity.
	Affinity time.Duration
	// ExternalLocal and InternalLocal report whether these traffic policies are Local.
	ExternalLocal bool
	InternalLocal bool
	// HealthCheckNodePort is the port at which load balancers check whether this node has
	// endpoints; 0 if there is none. The table does not use it.
	HealthCheckNodePort uint16
}

// Equal reports whether s and o have the same content, in the same order. Nil slices equal empty
// ones.
func (s Service) Equal(o Service) bool {
	return s.Name == o.Name && s.Created.Equal(o.Created) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.BalancerIPs, o.BalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && slices.Equal(s.Ports, o.Ports) &&
		s.Affinity == o.Affinity && s.ExternalLocal == o.ExternalLocal &&
		s.InternalLocal == o.InternalLocal && s.HealthCheckNodePort == o.HealthCheckNodePort
}

// HasFamily reports whether the service may claim IPv6 addresses or, if v6 is false, IPv4
// addresses. A load balancer may list addresses of both families. Like kube-proxy, the table
// ignores families that the service does not have (GetClusterIPByFamily in pkg/proxy/util).
func (s *Service) HasFamily(v6 bool) bool {
	return len(s.ClusterIPs) == 0 ||
		slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Unmap().Is6() == v6 })
}

// HasNodePort reports whether a port of s is served on nodes' addresses.
func (s *Service) HasNodePort() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
}

// External reports whether s has addresses or ports that clients outside the cluster may use.
func (s *Service) External() bool {
	return len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0 || s.HasNodePort()
}

// Port is a port of a service. Name and Protocol together are unique in a service.
type Port struct {
	Name     string
	Protocol Protocol
	Port     uint16
	// NodePort is served on this node's addresses; 0 means that the port has no NodePort.
	NodePort uint16
}

// Slice holds what the table needs from an EndpointSlice.
type Slice struct {
	// Service is the service of the slice. Name is unique in the namespace of that service.
	Service   Name
	Name      string
	Ports     []SlicePort
	Endpoints Endpoints
	// Hints are the distinct hints of Endpoints.
	Hints []Hints
}

// Equal reports whether s and o have the same content, in the same order. Nil slices equal empty
// ones.
func (s Slice) Equal(o Slice) bool {
	return s.Service == o.Service && s.Name == o.Name && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Hints, o.Hints, Hints.equal) && s.Endpoints.Equal(o.Endpoints)
}

// AddHints adds hints to the slice, and returns their number for Endpoint.Hints. Beyond 65,535 it
// returns 0.
func (s *Slice) AddHints(h Hints) uint16 {
	if len(s.Hints) == math.MaxUint16 {
		return 0
	}
	s.Hints = append(s.Hints, h)
	return uint16(len(s.Hints))
}

// HintsOf returns the hints of an endpoint of s, or nil if it has none.
func (s *Slice) HintsOf(e Endpoint) *Hints {
	if e.Hints == 0 || int(e.Hints) > len(s.Hints) {
		return nil
	}
	return &s.Hints[e.Hints-1]
}

func (h Hints) equal(o Hints) bool {
	return slices.Equal(h.Zones, o.Zones) && slices.Equal(h.Nodes, o.Nodes)
}

// SlicePort is the port on which the endpoints of a slice serve the service's port of this name and
// protocol.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is a backend. The conditions have the meaning of discovery.k8s.io/v1. The caller sets
// the defaults of absent conditions.
type Endpoint struct {
	// An endpoint whose Addr is not Reachable is ignored.
	Addr netip.Addr
	// Node is the name of its node; "" if that is not known.
	Node                        string
	Ready, Serving, Terminating bool
	// Hints is the number of the endpoint's hints in Slice.Hints, from 1 on. 0 means that it has
	// none. A pointer would make each of a million endpoints larger.
	Hints uint16
}

// Hints are the zones and nodes whose clients should use an endpoint (discovery/v1 EndpointHints).
type Hints struct{ Zones, Nodes []string }

// APIServer is entry 0: the API server's own service, from configuration and the
// last snapshot.
type APIServer struct {
	// Frontends are the service's addresses.
	Frontends []netip.AddrPort
	// Backends are the servers that answer, or all known servers if none answers. If a family has
	// more than MaxAPIServers, the servers with the largest addresses are left out.
	Backends []netip.AddrPort
	// Reserved are the servers that do not answer now. No external address may claim them.
	Reserved []netip.AddrPort
	// Host are addresses for the node's own TCP sockets. No external address may claim them.
	Host []HostFrontend
}

// HostFrontend is an address that leads to Backends. Without Backends, it is not translated.
type HostFrontend struct {
	Addr     netip.AddrPort
	Backends []netip.AddrPort
}

// Reachable reports whether a frontend or a backend may have an address.
func Reachable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() &&
		!a.IsMulticast() && !a.Unmap().IsLinkLocalUnicast()
}

// Sink receives services and their endpoints as they change. Several goroutines call its methods,
// which must not block. The sink must not change what it receives. What it received before Listed
// must not be in force before Listed.
type Sink interface {
	PutService(s Service)
	DeleteService(n Name)
	PutSlice(s Slice)
	DeleteSlice(owner Name, slice string)
	// Listed is called once, after everything that existed has been put.
	Listed()
}

// LeftOut counts the objects of a namespace that a source does not pass on, because the namespace
// Has too many.
type LeftOut struct {
	// Kind is "Service" or "EndpointSlice".
	Kind, Namespace string
	Count           int
}
