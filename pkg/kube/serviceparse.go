package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// serviceNameLabel is on an EndpointSlice and names its service (discovery.k8s.io/v1).
const serviceNameLabel = "kubernetes.io/service-name"

// serviceSpec is the part of a Service's spec that is read; the field comments of core/v1 apply.
type serviceSpec struct {
	Type                     string   `json:"type"`
	ClusterIP                string   `json:"clusterIP"`
	ClusterIPs               []string `json:"clusterIPs"`
	ExternalIPs              []string `json:"externalIPs"`
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges"`
	ExternalTrafficPolicy    string   `json:"externalTrafficPolicy"`
	InternalTrafficPolicy    string   `json:"internalTrafficPolicy"`
	SessionAffinity          string   `json:"sessionAffinity"`
	SessionAffinityConfig    struct {
		ClientIP struct {
			TimeoutSeconds int32 `json:"timeoutSeconds"`
		} `json:"clientIP"`
	} `json:"sessionAffinityConfig"`
	HealthCheckNodePort int32      `json:"healthCheckNodePort"`
	Ports               []portSpec `json:"ports"`
}

type portSpec struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
	NodePort int32  `json:"nodePort"`
}

type serviceStatus struct {
	LoadBalancer struct {
		Ingress []struct {
			IP     string  `json:"ip"`
			IPMode *string `json:"ipMode"`
		} `json:"ingress"`
	} `json:"loadBalancer"`
}

// serviceContent returns the content of a Service in either form, or a problem if it is malformed.
func serviceContent(o *object) (w *wire.Service, problem string) {
	if w, ok := o.content.(*wire.Service); ok {
		return w, ""
	}
	var spec serviceSpec
	var status serviceStatus
	if err := unmarshal(o.Spec, &spec); err != nil {
		return nil, fmt.Sprintf("spec: %v", err)
	}
	if err := unmarshal(o.Status, &status); err != nil {
		return nil, fmt.Sprintf("status: %v", err)
	}

	w = &wire.Service{Type: spec.Type, ClusterIP: spec.ClusterIP, ClusterIPs: spec.ClusterIPs,
		ExternalIPs: spec.ExternalIPs, SourceRanges: spec.LoadBalancerSourceRanges,
		ExternalTrafficPolicy: spec.ExternalTrafficPolicy,
		InternalTrafficPolicy: spec.InternalTrafficPolicy, SessionAffinity: spec.SessionAffinity,
		AffinitySeconds:     spec.SessionAffinityConfig.ClientIP.TimeoutSeconds,
		HealthCheckNodePort: spec.HealthCheckNodePort}
	for _, p := range spec.Ports {
		w.Ports = append(w.Ports, wire.ServicePort(p))
	}
	for _, i := range status.LoadBalancer.Ingress {
		w.Ingress = append(w.Ingress, wire.LoadBalancerIngress{IP: i.IP, IPMode: i.IPMode})
	}
	return w, ""
}

// defaultAffinity is the timeout of a service that has affinity and no timeout (core/v1).
const defaultAffinity = 10800 * time.Second

// parseService reads a Service. It returns no value for a service without an address of its own.
func parseService(o *object) parsed[service.Service] {
	spec, problem := serviceContent(o)
	if problem == "" && spec.Excess {
		problem = fmt.Sprintf("it has more than %d ports, addresses and ranges", wire.MaxService)
	}
	if problem == "" && !validPorts(spec) {
		problem = "a port is not between 0 and 65535"
	}
	if problem != "" {
		return parsed[service.Service]{problem: problem + "; it is left out"}
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.Type == "ExternalName" || len(spec.ClusterIPs) == 0 || spec.ClusterIPs[0] == "None" {
		return parsed[service.Service]{}
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
		if i.IP != "" && (i.IPMode == nil || *i.IPMode != "Proxy") { // absent is VIP
			s.LoadBalancerIPs = append(s.LoadBalancerIPs,
				bad.addrs("status.loadBalancer.ingress", []string{i.IP})...)
		}
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

	return parsed[service.Service]{value: &s, problem: string(bad)}
}

// validPorts reports whether all ports are numbers of ports.
func validPorts(w *wire.Service) bool {
	valid := func(port int32) bool { return port >= 0 && port <= 65535 }
	return valid(w.HealthCheckNodePort) &&
		!slices.ContainsFunc(w.Ports, func(p wire.ServicePort) bool {
			return !valid(p.Port) || !valid(p.NodePort)
		})
}

// endpointSpec is an endpoint of an EndpointSlice in JSON.
type endpointSpec struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
}

// sliceContent returns the content of an EndpointSlice in either form, or a problem if it is
// malformed or too large.
func sliceContent(o *object) (w *wire.EndpointSlice, problem string) {
	if w, ok := o.content.(*wire.EndpointSlice); ok {
		if w.Excess {
			return nil, fmt.Sprintf("it has more than %d endpoints and ports", wire.MaxEndpoints)
		}
		return w, ""
	}

	w = &wire.EndpointSlice{AddressType: o.AddressType}
	if err := unmarshal(o.Ports, &w.Ports); err != nil {
		return nil, fmt.Sprintf("ports: %v", err)
	}
	var endpoints []endpointSpec
	if err := unmarshal(o.Endpoints, &endpoints); err != nil {
		return nil, fmt.Sprintf("endpoints: %v", err)
	}
	for _, ep := range endpoints {
		e := wire.Endpoint{NodeName: ep.NodeName, Ready: ep.Conditions.Ready,
			Serving: ep.Conditions.Serving, Terminating: ep.Conditions.Terminating}
		if len(ep.Addresses) > 0 {
			e.Address = ep.Addresses[0]
		}
		w.Endpoints = append(w.Endpoints, e)
	}
	return w, ""
}

// parseEndpoints reads an EndpointSlice. It returns no value for a slice without a service or with
// host names.
func parseEndpoints(o *object) parsed[service.Slice] {
	owner := o.Labels[serviceNameLabel]
	if owner == "" {
		return parsed[service.Slice]{}
	}
	w, problem := sliceContent(o)
	if problem != "" {
		return parsed[service.Slice]{problem: problem + "; it is left out"}
	}
	if w.AddressType != "IPv4" && w.AddressType != "IPv6" {
		return parsed[service.Slice]{}
	}

	var bad malformed
	s := service.Slice{Service: service.Name{Namespace: o.Namespace, Name: owner}, Name: o.Name}
	for _, p := range w.Ports {
		protocol := bad.protocol("ports", p.Protocol)
		if protocol == 0 || p.Port == nil {
			continue
		}
		if *p.Port < 0 || *p.Port > 65535 {
			return parsed[service.Slice]{problem: "a port is not between 0 and 65535; it is left out"}
		}
		s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Protocol: protocol,
			Port: uint16(*p.Port)})
	}

	s.Endpoints = make([]service.Endpoint, 0, len(w.Endpoints))
	for _, e := range w.Endpoints {
		if e.Address == "" {
			continue
		}
		for _, addr := range bad.addrs("endpoints", []string{e.Address}) {
			s.Endpoints = append(s.Endpoints, endpointAt(addr, e))
		}
	}

	return parsed[service.Slice]{value: &s, problem: string(bad)}
}

// endpointAt returns the endpoint with the defaults of absent conditions: ready and serving are
// true, terminating is false (discovery.k8s.io/v1).
func endpointAt(addr netip.Addr, e wire.Endpoint) service.Endpoint {
	or := func(v *bool, absent bool) bool {
		if v == nil {
			return absent
		}
		return *v
	}
	return service.Endpoint{Addr: addr, Node: e.NodeName, Ready: or(e.Ready, true),
		Serving: or(e.Serving, true), Terminating: or(e.Terminating, false)}
}

// malformed is a sentence about the last part that was left out; "" if none was.
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

// ranges keeps a malformed range as one that contains no address: dropping the only range would
// admit every client.
func (m *malformed) ranges(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range list {
		p, err := parseCIDR(strings.TrimSpace(text))
		if err != nil {
			m.add("spec.loadBalancerSourceRanges", text)
		}
		out = append(out, p.Masked())
	}
	return out
}

// protocol returns 0 for a protocol that is not known.
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
