package publish

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Export is a ServiceExport.
type Export struct {
	record.Key
	Created     time.Time
	Annotations map[string]string
	// CopiedLabels and CopiedAnnotations are those for its import, within the bounds of
	// record.Copied.
	CopiedLabels, CopiedAnnotations map[string]string
}

// Record returns the content of a SiteRecord for the export of s, as Service.Record does.
func (e Export) Record(s *Service, ranges []netip.Prefix) (r *record.Service, left int) {
	r, left = s.Record(ranges)
	r.Created, r.Labels, r.Annotations = e.Created, e.CopiedLabels, e.CopiedAnnotations
	return r, left
}

// Service is a Service and its EndpointSlices.
type Service struct {
	Spec corev1.ServiceSpec
	// Derived reports whether the Service stands for an import. Such a Service is not exported.
	Derived bool
	Slices  []discoveryv1.EndpointSlice
}

// Exportable returns a sentence about why the Service cannot be exported, or "".
func (s *Service) Exportable() string {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return "a Service of type ExternalName has no endpoints: export a Service of another type"
	case s.Derived:
		return "the Service stands for an import: export the Service in the cluster of its pods"
	case len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone:
		return "the Service has no port"
	}
	return ""
}

// Record returns the content of a SiteRecord for the Service. Endpoints outside of ranges, and
// those beyond record.MaxEndpoints or in more than record.MaxSlices slices, are left out and
// counted. Nil ranges contain every address.
func (s *Service) Record(ranges []netip.Prefix) (r *record.Service, left int) {
	r = &record.Service{Headless: s.Spec.ClusterIP == corev1.ClusterIPNone,
		V4: slices.Contains(s.Spec.IPFamilies, corev1.IPv4Protocol),
		V6: slices.Contains(s.Spec.IPFamilies, corev1.IPv6Protocol)}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		r.AffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil &&
			c.ClientIP.TimeoutSeconds != nil {
			r.AffinitySeconds = *c.ClientIP.TimeoutSeconds
		}
	}
	r.InternalLocal = s.Spec.InternalTrafficPolicy != nil &&
		*s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	r.TrafficDistribution = valueOf(s.Spec.TrafficDistribution)
	for _, p := range s.Spec.Ports {
		r.Ports = append(r.Ports, record.Port{Name: p.Name, Protocol: protocolOf(&p.Protocol),
			Port: p.Port, AppProtocol: valueOf(p.AppProtocol)})
	}

	room := record.MaxEndpoints
	for _, slice := range s.Slices {
		out := record.Slice{Ports: slicePorts(slice.Ports)}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || room == 0 || len(r.Slices) == record.MaxSlices ||
				ranges != nil && !inAny(ranges, a) {
				left++
				continue
			}
			room--
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			out.Endpoints = append(out.Endpoints, record.Endpoint{Address: a,
				Node: valueOf(e.NodeName), Hostname: valueOf(e.Hostname), Ready: ready,
				Serving:     e.Conditions.Serving == nil && ready || isTrue(e.Conditions.Serving),
				Terminating: isTrue(e.Conditions.Terminating)})
		}
		if len(out.Endpoints) > 0 {
			r.Slices = append(r.Slices, out)
		}
	}
	return r, left
}

// slicePorts returns the ports of an EndpointSlice. A port without a number stands for all ports,
// and is left out.
func slicePorts(ports []discoveryv1.EndpointPort) (out []record.Port) {
	for _, p := range ports {
		if p.Port != nil {
			out = append(out, record.Port{Name: valueOf(p.Name), Protocol: protocolOf(p.Protocol),
				Port: *p.Port, AppProtocol: valueOf(p.AppProtocol)})
		}
	}
	return out
}

func protocolOf(p *corev1.Protocol) string {
	if p == nil || *p == "" {
		return string(corev1.ProtocolTCP)
	}
	return string(*p)
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func isTrue(b *bool) bool { return b != nil && *b }

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
