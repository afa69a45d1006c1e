package object

import (
	"fmt"
	"unique"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// Node returns the content of a Node, in protobuf or JSON, and a sentence about a malformed part
// that was left out, or "".
func Node(o *Object) (n *wire.Node, problem string) {
	if n, ok := o.Content.(*wire.Node); ok {
		return n, ""
	}
	var s struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
		Taints   []struct {
			Key string `json:"key"`
		} `json:"taints"`
	}
	if err := Unmarshal(o.Spec, &s); err != nil {
		problem = fmt.Sprintf("spec: %v", err)
	}

	n = &wire.Node{PodCIDR: s.PodCIDR, PodCIDRs: s.PodCIDRs}
	n.LabelsExcess = o.Excess
	n.Leaving = !o.DeletionTimestamp.IsZero()
	for _, taint := range s.Taints {
		n.Leaving = n.Leaving || taint.Key == wire.DeletedTaint
	}
	var t struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	}
	if err := Unmarshal(o.Status, &t); err != nil {
		problem = fmt.Sprintf("status: %v", err)
	}
	for _, a := range t.Addresses {
		n.Addresses = append(n.Addresses, wire.NodeAddress(a))
	}
	return n, problem
}

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

// Service returns the content of a Service, in protobuf or JSON, or a problem if it cannot be read.
func Service(o *Object) (w *wire.Service, problem string) {
	if o.Unread != nil {
		return nil, o.Unread.Error()
	}
	if w, ok := o.Content.(*wire.Service); ok {
		return w, ""
	}
	var spec serviceSpec
	var status serviceStatus
	if err := Unmarshal(o.Spec, &spec); err != nil {
		return nil, fmt.Sprintf("spec: %v", err)
	}
	if err := Unmarshal(o.Status, &status); err != nil {
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

// endpointSpec is an endpoint of an EndpointSlice in JSON.
type endpointSpec struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	Hints struct {
		ForZones []hintSpec `json:"forZones"`
		ForNodes []hintSpec `json:"forNodes"`
	} `json:"hints"`
}

type hintSpec struct {
	Name string `json:"name"`
}

// hintNames returns the names of hints.
func hintNames(hints []hintSpec) (names []string) {
	for _, h := range hints {
		names = append(names, h.Name)
	}
	return names
}

// EndpointSlice returns the content of an EndpointSlice, in protobuf or JSON, or a problem if it
// cannot be read.
func EndpointSlice(o *Object) (w *wire.EndpointSlice, problem string) {
	if o.Unread != nil {
		return nil, o.Unread.Error()
	}
	if w, ok := o.Content.(*wire.EndpointSlice); ok {
		return w, ""
	}

	w = &wire.EndpointSlice{AddressType: o.AddressType}
	if err := Unmarshal(o.Ports, &w.Ports); err != nil {
		return nil, fmt.Sprintf("ports: %v", err)
	}
	var endpoints []endpointSpec
	if err := Unmarshal(o.Endpoints, &endpoints); err != nil {
		return nil, fmt.Sprintf("endpoints: %v", err)
	}
	for _, ep := range endpoints {
		e := wire.Endpoint{Node: unique.Make(ep.NodeName), Ready: ep.Conditions.Ready,
			Serving: ep.Conditions.Serving, Terminating: ep.Conditions.Terminating,
			ForZones: hintNames(ep.Hints.ForZones), ForNodes: hintNames(ep.Hints.ForNodes)}
		var address []byte
		if len(ep.Addresses) > 0 {
			address = []byte(ep.Addresses[0])
		}
		w.Append(e, address)
	}
	return w, ""
}
