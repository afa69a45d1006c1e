package service

import (
	"net/netip"
	"time"
)

// View describes to operators how a service is in force.
type View struct {
	Service   Name           `json:"service"`
	Frontends []FrontendView `json:"fronts,omitempty"`
	// Problems are the reasons why the service is not served as its object requests.
	Problems []string `json:"problems,omitempty"`
}

// FrontendView is a frontend of a service.
type FrontendView struct {
	Addr     netip.AddrPort `json:"addr"`
	Protocol Protocol       `json:"protocol"`
	Scope    Scope          `json:"scope"`
	// Kind is the field of the Service that the address comes from, such as ClusterIP.
	Kind string `json:"kind"`
	// Owner is the service that has the frontend, which may be another service.
	Owner Name `json:"owner"`
	// Local reports whether only backends on this node are chosen, Drop whether packets are dropped
	// because this node has no backend.
	Local bool `json:"local,omitempty"`
	Drop  bool `json:"drop,omitempty"`
	// Affinity is the time for which a client keeps its backend.
	Affinity time.Duration `json:"affinity,omitempty"`
	// Sources are the ranges of external clients that are admitted if Ranged is set. Otherwise any
	// client is admitted.
	Sources []netip.Prefix `json:"sources,omitempty"`
	Ranged  bool           `json:"ranged,omitempty"`
	// Chosen is the number of backends for new connections, Known the number of all endpoints.
	Chosen int `json:"chosen"`
	Known  int `json:"known"`
	// Backends are the backends for new connections, all with the same probability, and then the
	// others. It is empty in the result of List.
	Backends []BackendView `json:"backends,omitempty"`
}

// BackendView is an endpoint of a frontend.
type BackendView struct {
	Addr netip.AddrPort `json:"addr"`
	Node string         `json:"node,omitempty"`
	// Here reports whether the endpoint is on this node.
	Here bool `json:"here,omitempty"`
	// Chosen reports whether new connections may go there. Why is the reason.
	Chosen bool   `json:"chosen"`
	Why    string `json:"why"`
}
