package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

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
			TimeoutSeconds int64 `json:"timeoutSeconds"`
		} `json:"clientIP"`
	} `json:"sessionAffinityConfig"`
	HealthCheckNodePort uint16     `json:"healthCheckNodePort"`
	Ports               []portSpec `json:"ports"`
}

type portSpec struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort"`
}

type serviceStatus struct {
	LoadBalancer struct {
		Ingress []struct {
			IP     string `json:"ip"`
			IPMode string `json:"ipMode"`
		} `json:"ingress"`
	} `json:"loadBalancer"`
}

// defaultAffinity is the timeout in core/v1 of a service with affinity and without its own timeout.
const defaultAffinity = 10800 * time.Second

// parseService reads a Service. One without an address of its own comes to nothing.
func parseService(o *object) parsed[service.Service] {
	var spec serviceSpec
	var status serviceStatus
	if err := unmarshal(o.Spec, &spec); err != nil {
		return parsed[service.Service]{problem: fmt.Sprintf("spec: %v; it is left out", err)}
	}
	if err := unmarshal(o.Status, &status); err != nil {
		return parsed[service.Service]{problem: fmt.Sprintf("status: %v; it is left out", err)}
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
		SourceRanges:        bad.ranges(spec.LoadBalancerSourceRanges),
		ExternalLocal:       spec.ExternalTrafficPolicy == "Local",
		InternalLocal:       spec.InternalTrafficPolicy == "Local",
		HealthCheckNodePort: spec.HealthCheckNodePort,
	}

	for _, i := range status.LoadBalancer.Ingress {
		if i.IP != "" && i.IPMode != "Proxy" { // absent is VIP
			s.LoadBalancerIPs = append(s.LoadBalancerIPs,
				bad.addrs("status.loadBalancer.ingress", []string{i.IP})...)
		}
	}

	if spec.SessionAffinity == "ClientIP" {
		s.Affinity = defaultAffinity
		if t := spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; t > 0 {
			s.Affinity = time.Duration(t) * time.Second
		}
	}

	for _, p := range spec.Ports {
		if protocol := bad.protocol("spec.ports", p.Protocol); protocol != 0 {
			s.Ports = append(s.Ports, service.Port{Name: p.Name, Protocol: protocol, Port: p.Port,
				NodePort: p.NodePort})
		}
	}

	return parsed[service.Service]{&s, string(bad)}
}

// parseEndpoints reads an EndpointSlice. One of no service, or of host names, comes to nothing.
func parseEndpoints(o *object) parsed[service.Slice] {
	var ports []struct {
		Name     string  `json:"name"`
		Protocol string  `json:"protocol"`
		Port     *uint16 `json:"port"`
	}
	var endpoints []endpointSpec
	owner := o.Labels[serviceNameLabel]
	if owner == "" || o.AddressType != "IPv4" && o.AddressType != "IPv6" {
		return parsed[service.Slice]{}
	}
	if err := unmarshal(o.Ports, &ports); err != nil {
		return parsed[service.Slice]{problem: fmt.Sprintf("ports: %v; it is left out", err)}
	}

	if err := unmarshal(o.Endpoints, &endpoints); err != nil {
		return parsed[service.Slice]{problem: fmt.Sprintf("endpoints: %v; it is left out", err)}
	}

	var bad malformed
	s := service.Slice{Service: service.Name{Namespace: o.Namespace, Name: owner}, Name: o.Name}
	for _, p := range ports {
		if protocol := bad.protocol("ports", p.Protocol); protocol != 0 && p.Port != nil {
			s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Protocol: protocol,
				Port: *p.Port})
		}
	}

	for _, ep := range endpoints {
		// Further addresses of an endpoint mean nothing (discovery.k8s.io/v1).
		for _, addr := range bad.addrs("endpoints", ep.Addresses[:min(len(ep.Addresses), 1)]) {
			s.Endpoints = append(s.Endpoints, ep.at(addr))
		}
	}

	return parsed[service.Slice]{&s, string(bad)}
}

type endpointSpec struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
}

// at returns the endpoint with what absent conditions mean: ready and serving true, terminating
// false (discovery.k8s.io/v1).
func (e endpointSpec) at(addr netip.Addr) service.Endpoint {
	or := func(v *bool, absent bool) bool {
		if v == nil {
			return absent
		}
		return *v
	}
	return service.Endpoint{
		Addr: addr, Node: e.NodeName,
		Ready: or(e.Conditions.Ready, true), Serving: or(e.Conditions.Serving, true),
		Terminating: or(e.Conditions.Terminating, false),
	}
}

// malformed is the last thing that was left out, as a sentence; empty is none.
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
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			m.add("spec.loadBalancerSourceRanges", text)
		}
		out = append(out, p.Masked())
	}
	return out
}

// protocol is 0 for one that is not known.
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
