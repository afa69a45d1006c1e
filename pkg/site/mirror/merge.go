package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Source is a cluster that exports a service.
type Source struct {
	Cluster string
	// First is the age of the export.
	First   time.Time
	Service *record.Service
	// Own reports whether the source is this cluster.
	Own bool
}

// Import is a service of one or several clusters.
type Import struct {
	// Sources are the clusters that export it, the oldest export first.
	Sources []*Source
	// Service has the settings that the sources result in, and no endpoints.
	Service record.Service
	// Reasons are the reasons of the condition Conflict (KEP-1645), sorted, and Conflict a sentence
	// about them. They are empty if the exports do not differ.
	Reasons  []string
	Conflict string
	// PreferLocal is Existing.PreferLocal.
	PreferLocal bool
}

// merge returns the import of a service with at least one source. The oldest export decides; others
// add ports.
func merge(sources []*Source) *Import {
	slices.SortFunc(sources, func(a, b *Source) int {
		return cmp.Or(a.First.Compare(b.First), strings.Compare(a.Cluster, b.Cluster))
	})
	oldest := sources[0]
	m := &Import{Sources: sources, Service: *oldest.Service}
	m.Service.Slices = nil
	m.Service.Ports = slices.Clone(oldest.Service.Ports)

	var differ []string
	for _, s := range sources[1:] {
		if reasons := differences(s.Service, oldest.Service); len(reasons) > 0 {
			m.Reasons = append(m.Reasons, reasons...)
			differ = append(differ, s.Cluster)
		}
		m.addPorts(s.Service.Ports)
		m.Service.V4, m.Service.V6 = m.Service.V4 || s.Service.V4, m.Service.V6 || s.Service.V6
	}

	if len(differ) > 0 {
		slices.Sort(m.Reasons)
		m.Reasons = slices.Compact(m.Reasons)
		m.Conflict = fmt.Sprintf("the exports of %s differ from the export of %s, which is the "+
			"oldest and decides: make the Services "+
			"and exports alike", strings.Join(differ, ", "), oldest.Cluster)
	}
	return m
}

// differences returns the reasons of the condition Conflict between two exports of a service.
func differences(a, b *record.Service) (reasons []string) {
	for reason, differ := range map[mcs.ServiceExportConditionReason]bool{
		mcs.ServiceExportReasonTypeConflict: a.Headless != b.Headless,
		mcs.ServiceExportReasonSessionAffinityConflict: (a.AffinitySeconds == 0) !=
			(b.AffinitySeconds == 0),
		mcs.ServiceExportReasonSessionAffinityConfigConflict: a.AffinitySeconds !=
			b.AffinitySeconds && a.AffinitySeconds > 0 && b.AffinitySeconds > 0,
		mcs.ServiceExportReasonInternalTrafficPolicyConflict: a.InternalLocal != b.InternalLocal,
		mcs.ServiceExportReasonTrafficDistributionConflict: a.TrafficDistribution !=
			b.TrafficDistribution,
		mcs.ServiceExportReasonIPFamilyConflict:    a.V4 != b.V4 || a.V6 != b.V6,
		mcs.ServiceExportReasonPortConflict:        !slices.Equal(a.Ports, b.Ports),
		mcs.ServiceExportReasonLabelsConflict:      !maps.Equal(a.Labels, b.Labels),
		mcs.ServiceExportReasonAnnotationsConflict: !maps.Equal(a.Annotations, b.Annotations),
	} {
		if differ {
			reasons = append(reasons, string(reason))
		}
	}
	return reasons
}

// addPorts adds the ports that conflict with no present one by name, or by number and protocol.
// Several ports all need a name.
func (m *Import) addPorts(ports []record.Port) {
	for _, p := range ports {
		conflicts := slices.ContainsFunc(m.Service.Ports, func(has record.Port) bool {
			return has.Name == p.Name || has.Name == "" || p.Name == "" ||
				has.Port == p.Port && has.Protocol == p.Protocol
		})
		if !conflicts && len(m.Service.Ports) < record.MaxPorts {
			m.Service.Ports = append(m.Service.Ports, p)
		}
	}
}

// preferLocal uses endpoints of other clusters only where this cluster has no ready one.
func (m *Import) preferLocal() {
	m.PreferLocal = true
	m.lower(func(s *Source, _ record.Endpoint) bool { return !s.Own })
}

// lower lets some endpoints count as endpoints that terminate and serve, in each family in which
// another one is ready. So they get new connections only where no other endpoint is ready
// (KEP-1669).
func (m *Import) lower(some func(*Source, record.Endpoint) bool) {
	ready := map[bool]bool{} // by whether the family is IPv4
	lowered := map[*Source]bool{}
	for _, s := range m.Sources {
		for _, slice := range s.Service.Slices {
			for _, e := range slice.Endpoints {
				if some(s, e) {
					lowered[s] = true
				} else if e.Ready {
					ready[e.Address.Is4()] = true
				}
			}
		}
	}

	for s := range lowered {
		service := *s.Service
		service.Slices = slices.Clone(service.Slices)
		for i, slice := range service.Slices {
			endpoints := slices.Clone(slice.Endpoints)
			for j, e := range endpoints {
				if ready[e.Address.Is4()] && e.Ready && some(s, e) {
					endpoints[j].Ready, endpoints[j].Serving, endpoints[j].Terminating = false, true, true
				}
			}
			service.Slices[i].Endpoints = endpoints
		}
		s.Service = &service
	}
}
