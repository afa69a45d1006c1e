package servicefeed

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// defaultAffinity is the timeout of a service with session affinity but without a timeout
// (core/v1).
const defaultAffinity = 10800 * time.Second

// parseService parses a Service. It returns no value for a service without a cluster IP.
func parseService(o *object.Object) feed.Parsed[service.Service] {
	spec, problem := object.Service(o)
	if problem != "" {
		return unread[service.Service](problem)
	}
	if spec.Excess {
		problem = fmt.Sprintf("it has more than %d ports, addresses and ranges", wire.MaxService)
	}
	if problem == "" && !validPorts(spec) {
		problem = "a port is not between 0 and 65535"
	}
	if problem != "" {
		return feed.Parsed[service.Service]{Problem: problem + "; it is left out"}
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.Type == "ExternalName" || len(spec.ClusterIPs) == 0 || spec.ClusterIPs[0] == "None" {
		return feed.Parsed[service.Service]{}
	}

	var bad malformed
	s := service.Service{
		Name:                service.Name{Namespace: o.Namespace, Name: o.Name},
		Created:             o.CreationTimestamp.UTC(),
		ClusterIPs:          bad.addrs("spec.clusterIPs", spec.ClusterIPs),
		ExternalIPs:         bad.addrs("spec.externalIPs", spec.ExternalIPs),
		SourceRanges:        bad.ranges(spec.SourceRanges),
		ExternalLocal:       spec.ExternalTrafficPolicy == "Local",
		InternalLocal:       spec.InternalTrafficPolicy == "Local",
		HealthCheckNodePort: uint16(spec.HealthCheckNodePort),
	}

	for _, i := range spec.Ingress {
		if i.IP == "" {
			continue
		}
		addrs := &s.LoadBalancerIPs
		if i.IPMode != nil && *i.IPMode == "Proxy" { // absent is VIP
			addrs = &s.BalancerIPs
		}
		*addrs = append(*addrs, bad.addrs("status.loadBalancer.ingress", []string{i.IP})...)
	}

	if spec.SessionAffinity == "ClientIP" {
		s.Affinity = defaultAffinity
		if t := spec.AffinitySeconds; t > 0 {
			s.Affinity = time.Duration(t) * time.Second
		}
	}

	for _, p := range spec.Ports {
		if protocol := bad.protocol("spec.ports", p.Protocol); protocol != 0 {
			s.Ports = append(s.Ports, service.Port{Name: p.Name, Protocol: protocol,
				Port: uint16(p.Port), NodePort: uint16(p.NodePort)})
		}
	}

	return feed.Parsed[service.Service]{Value: &s, Problem: string(bad)}
}

// unread returns the result for an object that cannot be read.
func unread[T any](problem string) feed.Parsed[T] {
	return feed.Parsed[T]{Keep: true,
		Problem: problem + "; what was read of it before stays in force"}
}

// validPorts reports whether all port numbers are between 0 and 65535.
func validPorts(w *wire.Service) bool {
	valid := func(port int32) bool { return port >= 0 && port <= 65535 }
	return valid(w.HealthCheckNodePort) &&
		!slices.ContainsFunc(w.Ports, func(p wire.ServicePort) bool {
			return !valid(p.Port) || !valid(p.NodePort)
		})
}

// parseEndpoints parses an EndpointSlice. It returns no value for a slice without a service or with
// host names.
func parseEndpoints(o *object.Object) feed.Parsed[service.Slice] {
	owner := o.Labels[object.ServiceNameLabel]
	if owner == "" {
		return feed.Parsed[service.Slice]{}
	}
	w, problem := object.EndpointSlice(o)
	if problem != "" {
		return unread[service.Slice](problem)
	}
	if w.Excess {
		return feed.Parsed[service.Slice]{Problem: fmt.Sprintf("it has more than %d endpoints, hints "+
			"and ports; it is left out", wire.MaxEndpoints)}
	}
	if w.AddressType != "IPv4" && w.AddressType != "IPv6" {
		return feed.Parsed[service.Slice]{}
	}

	var bad malformed
	s := service.Slice{Service: service.Name{Namespace: o.Namespace, Name: owner}, Name: o.Name}
	for _, p := range w.Ports {
		protocol := bad.protocol("ports", p.Protocol)
		if protocol == 0 || p.Port == nil {
			continue
		}
		if *p.Port < 0 || *p.Port > 65535 {
			return feed.Parsed[service.Slice]{
				Problem: "a port is not between 0 and 65535; it is left out"}
		}
		s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Protocol: protocol,
			Port: uint16(*p.Port)})
	}

	if w.Malformed != "" {
		bad.add("endpoints", w.Malformed)
	}
	s.Endpoints = service.MakeEndpoints(len(w.Endpoints))
	for _, e := range w.Endpoints {
		if !e.Addr.IsValid() {
			continue
		}
		at := endpointAt(e)
		at.Hints = hintsOf(&s, e)
		s.Endpoints.Add(at, e.Node)
	}
	w.Release()

	return feed.Parsed[service.Slice]{Value: &s, Problem: string(bad)}
}

// endpointAt returns an endpoint without its node and hints. Absent conditions have their defaults:
// ready and serving are true, terminating is false (discovery.k8s.io/v1).
func endpointAt(e wire.Endpoint) service.Endpoint {
	or := func(v *bool, absent bool) bool {
		if v == nil {
			return absent
		}
		return *v
	}
	return service.Endpoint{Addr: e.Addr, Ready: or(e.Ready, true),
		Serving: or(e.Serving, true), Terminating: or(e.Terminating, false)}
}

// maxHints bounds the hints of each kind that an endpoint may have. The API has the same limit.
const maxHints = 8

// hintsOf returns the number of the hints of an endpoint in s, or 0 if the endpoint has none. It adds
// hints that are new.
func hintsOf(s *service.Slice, e wire.Endpoint) uint16 {
	own := service.Hints{Zones: e.ForZones[:min(len(e.ForZones), maxHints)],
		Nodes: e.ForNodes[:min(len(e.ForNodes), maxHints)]}
	if len(own.Zones) == 0 && len(own.Nodes) == 0 {
		return 0
	}

	// Only the last hints are searched: a slice has few zones, but may have a node for each
	// endpoint.
	const searched = 8
	for i := len(s.Hints) - 1; i >= max(0, len(s.Hints)-searched); i-- {
		k := s.Hints[i]
		if slices.Equal(k.Zones, own.Zones) && slices.Equal(k.Nodes, own.Nodes) {
			return uint16(i + 1)
		}
	}
	return s.AddHints(own)
}

// malformed is a sentence about the last malformed part that was left out, or "".
type malformed string

func (m *malformed) add(field, text string) {
	*m = malformed(fmt.Sprintf("%s: %q is malformed and is left out", field, text))
}

func (m *malformed) addrs(field string, list []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			m.add(field, text)
			continue
		}
		out = append(out, a.Unmap())
	}
	return out
}

// ranges parses source ranges. It keeps a malformed range as one that contains no address, because
// without any range the service would admit every client.
func (m *malformed) ranges(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range list {
		p, err := object.ParseCIDR(strings.TrimSpace(text))
		if err != nil {
			m.add("spec.loadBalancerSourceRanges", text)
		}
		out = append(out, p.Masked())
	}
	return out
}

// protocol parses a protocol. It returns 0 for a protocol that is not known.
func (m *malformed) protocol(field, name string) service.Protocol {
	switch name {
	case "", "TCP":
		return service.TCP
	case "UDP":
		return service.UDP
	case "SCTP":
		return service.SCTP
	}
	m.add(field, name)
	return 0
}
