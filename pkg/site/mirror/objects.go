package mirror

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Labels and annotations of mirrored objects.
const (
	// ManagedBy is the value of the labels that name the program that writes an object.
	ManagedBy      = "veil-site.kubeveil.io"
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ImportLabel is the label of a derived Service that names its import.
	ImportLabel = "kubeveil.io/import"
	// FirstAnnotation is the annotation of a ServiceImport with Existing.First, in JSON.
	FirstAnnotation = "kubeveil.io/first-seen"
	// PreferAnnotation is the annotation of a ServiceImport with which a user chooses endpoints:
	// PreferLocal puts those of this cluster first.
	PreferAnnotation = "kubeveil.io/prefer"
	PreferLocal      = "local"
)

// sliceSize is the number of endpoints of an EndpointSlice.
const sliceSize = 500

// DerivedName returns the name of the Service that is derived from an import.
func DerivedName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "mcs-" + hex.EncodeToString(sum[:10])
}

// Derived returns the Service that is derived from the import.
func (m *Import) Derived(k record.Key) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: DerivedName(k.Name),
			Labels: map[string]string{ManagedByLabel: ManagedBy, ImportLabel: k.Name}}}
	single := corev1.IPFamilyPolicySingleStack
	s.Spec.IPFamilyPolicy = &single
	switch {
	case m.Service.V4 && m.Service.V6:
		prefer := corev1.IPFamilyPolicyPreferDualStack
		s.Spec.IPFamilyPolicy = &prefer
	case m.Service.V6:
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	case m.Service.V4:
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}

	if m.Service.Headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = m.affinity()
	s.Spec.InternalTrafficPolicy = m.internal()
	for _, p := range m.Service.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port,
			Protocol: corev1.Protocol(p.Protocol), AppProtocol: orNil(p.AppProtocol)})
	}
	return s
}

// ServiceImport returns the ServiceImport. ips are the cluster IPs of the derived Service.
func (m *Import) ServiceImport(k record.Key, ips []string) (*mcs.ServiceImport, error) {
	first := map[string]time.Time{}
	s := &mcs.ServiceImport{TypeMeta: metav1.TypeMeta{APIVersion: mcs.GroupVersion.String(),
		Kind: mcs.ServiceImportKindName}, ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace,
		Name: k.Name, Labels: map[string]string{ManagedByLabel: ManagedBy}}}
	for _, source := range m.Sources {
		first[source.Cluster] = source.First.UTC().Truncate(time.Second)
		s.Status.Clusters = append(s.Status.Clusters, mcs.ClusterStatus{Cluster: source.Cluster})
	}
	slices.SortFunc(s.Status.Clusters, func(a, b mcs.ClusterStatus) int {
		return strings.Compare(a.Cluster, b.Cluster)
	})

	text, err := json.Marshal(first)
	if err != nil {
		return nil, fmt.Errorf("encode import %s: %w", k, err)
	}
	maps.Copy(s.Labels, m.Service.Labels)
	s.Annotations = map[string]string{FirstAnnotation: string(text)}
	maps.Copy(s.Annotations, m.Service.Annotations)
	if m.PreferLocal {
		s.Annotations[PreferAnnotation] = PreferLocal
	}
	s.Spec = mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: ips, Ports: []mcs.ServicePort{}}
	if m.Service.Headless {
		s.Spec.Type, s.Spec.IPs = mcs.Headless, nil
	}
	s.Spec.IPFamilies = m.families(s.Spec.IPs)
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = m.affinity()
	s.Spec.InternalTrafficPolicy = m.internal()
	s.Spec.TrafficDistribution = orNil(m.Service.TrafficDistribution)
	for _, p := range m.Service.Ports {
		s.Spec.Ports = append(s.Spec.Ports, mcs.ServicePort{Name: p.Name, Port: p.Port,
			Protocol: corev1.Protocol(p.Protocol), AppProtocol: orNil(p.AppProtocol)})
	}
	s.Status.EndpointSliceObjects = mcs.EndpointSliceObjectsPresent
	return s, nil
}

// families returns the families of the addresses of an import, in the order of the addresses. While
// it has no address, they are the families of the service. A cluster may have one of them only.
func (m *Import) families(ips []string) (out []corev1.IPFamily) {
	for _, text := range ips {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
			out = append(out, corev1.IPv4Protocol)
		} else if err == nil {
			out = append(out, corev1.IPv6Protocol)
		}
	}
	if len(out) > 0 {
		return out
	}
	if m.Service.V4 {
		out = append(out, corev1.IPv4Protocol)
	}
	if m.Service.V6 {
		out = append(out, corev1.IPv6Protocol)
	}
	return out
}

func (m *Import) affinity() (corev1.ServiceAffinity, *corev1.SessionAffinityConfig) {
	n := m.Service.AffinitySeconds
	if n == 0 {
		return corev1.ServiceAffinityNone, nil
	}
	return corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}}
}

func (m *Import) internal() *corev1.ServiceInternalTrafficPolicy {
	policy := corev1.ServiceInternalTrafficPolicyCluster
	if m.Service.InternalLocal {
		policy = corev1.ServiceInternalTrafficPolicyLocal
	}
	return &policy
}

// SameMeta reports whether two ServiceImports have the same copied labels and annotations, and the
// same Existing.First.
func SameMeta(a, b mcs.ServiceImport) bool {
	x, y := ServiceOf(a), ServiceOf(b)
	return maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations) &&
		a.Annotations[FirstAnnotation] == b.Annotations[FirstAnnotation]
}

// ServiceOf returns the service that a ServiceImport describes, without endpoints.
func ServiceOf(i mcs.ServiceImport) *record.Service {
	spec := i.Spec
	s := &record.Service{Headless: spec.Type == mcs.Headless,
		V4: slices.Contains(spec.IPFamilies, corev1.IPv4Protocol),
		V6: slices.Contains(spec.IPFamilies, corev1.IPv6Protocol),
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal}
	s.Labels, s.Annotations, _ = record.Copied(i.Labels, i.Annotations)
	if spec.TrafficDistribution != nil {
		s.TrafficDistribution = *spec.TrafficDistribution
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil &&
		c.ClientIP.TimeoutSeconds != nil {
		s.AffinitySeconds = *c.ClientIP.TimeoutSeconds
	}
	for _, p := range spec.Ports {
		out := record.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port}
		if p.AppProtocol != nil {
			out.AppProtocol = *p.AppProtocol
		}
		s.Ports = append(s.Ports, out)
	}
	return s
}

// SliceOf returns the content of one of EndpointSlices.
func SliceOf(s discoveryv1.EndpointSlice) (out record.Slice) {
	for _, p := range s.Ports {
		if p.Name != nil && p.Protocol != nil && p.Port != nil {
			port := record.Port{Name: *p.Name, Protocol: string(*p.Protocol), Port: *p.Port}
			if p.AppProtocol != nil {
				port.AppProtocol = *p.AppProtocol
			}
			out.Ports = append(out.Ports, port)
		}
	}
	is := func(b *bool) bool { return b != nil && *b }
	for _, e := range s.Endpoints {
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			endpoint := record.Endpoint{Address: a, Ready: is(e.Conditions.Ready),
				Serving: is(e.Conditions.Serving), Terminating: is(e.Conditions.Terminating)}
			if e.Hostname != nil {
				endpoint.Hostname = *e.Hostname
			}
			out.Endpoints = append(out.Endpoints, endpoint)
		}
	}
	return out
}

// EndpointSlices returns the EndpointSlices of all sources.
func (m *Import) EndpointSlices(k record.Key) (out []*discoveryv1.EndpointSlice) {
	for _, source := range m.Sources {
		n := 0
		for _, slice := range source.Service.Slices {
			ports := m.usable(source, slice.Ports)
			for _, v4 := range []bool{true, false} {
				of := slices.DeleteFunc(slices.Clone(slice.Endpoints),
					func(e record.Endpoint) bool {
						return e.Address.Is4() != v4
					})
				for part := range slices.Chunk(of, sliceSize) {
					out = append(out, endpointSlice(k, source, n, m.Service.Headless, ports, part))
					n++
				}
			}
		}
	}
	return out
}

// usable returns the ports of endpoints of a source, by name and protocol, for which the service of
// the source has the port of the import. If it has another number, the source does not serve it.
func (m *Import) usable(source *Source, ports []record.Port) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	find := func(ports []record.Port, p record.Port) (number int32) {
		i := slices.IndexFunc(ports, func(has record.Port) bool {
			return has.Name == p.Name && has.Protocol == p.Protocol
		})
		if i < 0 {
			return 0
		}
		return ports[i].Port
	}
	for _, p := range ports {
		n := find(m.Service.Ports, p)
		if n == 0 || n != find(source.Service.Ports, p) {
			continue
		}
		protocol := corev1.Protocol(p.Protocol)
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &protocol,
			Port:        &p.Port,
			AppProtocol: orNil(p.AppProtocol)})
	}
	return out
}

// endpointSlice returns EndpointSlice n of a source. All endpoints are of one family. Only those of
// this cluster have the names of their nodes: nodes of two clusters may have one name, and
// internalTrafficPolicy Local selects by it.
func endpointSlice(k record.Key, source *Source, n int, headless bool,
	ports []discoveryv1.EndpointPort, endpoints []record.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace,
			Name: fmt.Sprintf("%s-%s-%d", DerivedName(k.Name), source.Cluster, n),
			Labels: map[string]string{discoveryv1.LabelServiceName: DerivedName(k.Name),
				discoveryv1.LabelManagedBy: ManagedBy, mcs.LabelServiceName: k.Name,
				mcs.LabelSourceCluster: source.Cluster}},
		AddressType: addressType(endpoints[0].Address), Ports: ports}
	if headless {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	for _, e := range endpoints {
		out := discoveryv1.Endpoint{Addresses: []string{e.Address.String()},
			Hostname: orNil(e.Hostname),
			Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready,
				Serving: &e.Serving, Terminating: &e.Terminating}}
		if source.Own {
			out.NodeName = orNil(e.Node)
		}
		s.Endpoints = append(s.Endpoints, out)
	}
	return s
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
