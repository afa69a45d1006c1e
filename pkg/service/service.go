package service

import (
	"fmt"
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

// String returns the name that Kubernetes has for it.
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

// Service is what the table needs of a Service. Headless services and those of
// type ExternalName have no addresses and give no frontends.
type Service struct {
	Name Name
	// Created settles who has a frontend that several claim: the older.
	Created time.Time
	// ClusterIPs are served for callers inside the cluster only. They say which families the
	// service has; one without any has both.
	ClusterIPs []netip.Addr
	// ExternalIPs and LoadBalancerIPs (those of ipMode VIP) are served for both.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// SourceRanges are who may come to LoadBalancerIPs from outside; none admits any client.
	SourceRanges []netip.Prefix
	Ports        []Port
	// Affinity is the timeout of sessionAffinity ClientIP, in whole seconds; 0 is no affinity.
	Affinity time.Duration
	// ExternalLocal and InternalLocal are the traffic policies Local.
	ExternalLocal bool
	InternalLocal bool
	// HealthCheckNodePort is where balancers ask whether this node has endpoints, 0 is nowhere. The
	// table has no part in it.
	HealthCheckNodePort uint16
}

// hasFamily reports whether addresses of IPv6, or IPv4, are the service's to claim: balancers tell
// of all they have, and kube-proxy leaves others alone too (GetClusterIPByFamily in
// pkg/proxy/util).
func (s *Service) hasFamily(v6 bool) bool {
	return len(s.ClusterIPs) == 0 ||
		slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Unmap().Is6() == v6 })
}

// hasNodePort reports whether a port of s is served on nodes' addresses.
func (s *Service) hasNodePort() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
}

// external reports whether s has addresses or ports that clients outside the cluster may use.
func (s *Service) external() bool {
	return len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0 || s.hasNodePort()
}

// Port is a port of a service. Name and Protocol together are unique in it.
type Port struct {
	Name     string
	Protocol Protocol
	Port     uint16
	// NodePort is served on the node's own addresses; 0 is none.
	NodePort uint16
}

// Slice is what the table needs of an EndpointSlice.
type Slice struct {
	// Service is whose it is; Name is unique in that service's namespace.
	Service   Name
	Name      string
	Ports     []SlicePort
	Endpoints []Endpoint
}

// SlicePort is where the endpoints of a slice listen for the service's port of
// this name and protocol.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is a backend. The conditions mean what discovery.k8s.io/v1 says; the
// caller has put in what an absent one means there.
type Endpoint struct {
	// Addr is ignored when no host can be reached there from another host.
	Addr netip.Addr
	// Node is the name of the node it is on, "" is unknown.
	Node                        string
	Ready, Serving, Terminating bool
}

// APIServer is entry 0: the API server's own service, from configuration and the
// last snapshot.
type APIServer struct {
	// Frontends are the service's addresses.
	Frontends []netip.AddrPort
	// Backends are the servers that answer, or all known ones when none does.
	// More than MaxAPIServers of a family are left out, the largest addresses first.
	Backends []netip.AddrPort
}

// reachable reports whether an address can be a frontend's or a backend's.
func reachable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() &&
		!a.IsMulticast() && !a.Unmap().IsLinkLocalUnicast()
}
