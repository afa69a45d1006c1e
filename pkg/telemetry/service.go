package telemetry

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Services describes the state of the table of services.
type Services struct {
	// Listed reports whether services were listed since this veild began. Until then, the table of
	// the previous veild stays in force.
	Listed bool `json:"listed"`
	// APIOnly reports whether the table contains only the service of the API servers, because
	// another program translates all other services.
	APIOnly bool `json:"apiOnly,omitempty"`
	// HostRouting names what delivers packets to pods of the node: "kernel" or "ebpf".
	HostRouting string `json:"hostRouting"`
	// FastPathOff is the reason why the kernel delivers packets although services.hostRouting is
	// auto. "" means that there is none.
	FastPathOff string `json:"fastPathOff,omitempty"`
	// Known is the number of services in the table.
	Known int `json:"known"`
	// Tables describes how full the maps are. A map is named by its limit.
	Tables     []ServiceTable `json:"tables"`
	APIServers []APIServer    `json:"apiServers,omitempty"`
	// APIFrontends are the addresses of services.apiFrontends.
	APIFrontends []APIFrontend `json:"apiFrontends,omitempty"`
	// APIClosed counts the connections that veild closed because their API server did not answer.
	APIClosed APIClosed `json:"apiClosed"`
	// SiteClosed counts the connections that veild closed because their node of another cluster did
	// not answer.
	SiteClosed uint64 `json:"siteClosed,omitempty"`
	// Chosen counts by protocol how often a backend was selected. Refused counts by reason how
	// often no backend was selected.
	Chosen  []ServiceCount `json:"chosen,omitempty"`
	Refused []ServiceCount `json:"refused,omitempty"`
	// FastPathLeft counts by reason how often a pod left the fast path of host routing by eBPF.
	FastPathLeft []FastPathLeft `json:"fastPathLeft,omitempty"`
	// HandedOver counts connections and UDP flows of pods that left the fast path.
	HandedOver HandedOver `json:"handedOver"`
	// Failures counts attempts to write the table that failed partly or entirely.
	Failures uint64 `json:"failures"`
	// Problems counts services that are not served as their objects request.
	Problems int `json:"problems"`
	// LeftOut counts the objects that are not in the table because their namespace needs more than
	// its share of the table.
	LeftOut []LeftOut `json:"leftOut,omitempty"`
}

// LeftOut is the number of a namespace's objects that are not in the table.
type LeftOut struct {
	Kind      string `json:"kind"` // "Service", "EndpointSlice" or "Address" (an external one)
	Namespace string `json:"namespace"`
	Count     int    `json:"count"`
}

// ServiceCount counts the outcomes of connections to services.
type ServiceCount struct {
	// Where is the place of the decision: "socket" or "packet".
	Where string `json:"where"`
	What  string `json:"what"`
	Count uint64 `json:"count"`
}

// FastPathLeft counts how often a pod left the fast path.
type FastPathLeft struct {
	Reason string `json:"reason"` // one of the constants below
	Count  uint64 `json:"count"`
}

// Reasons why a pod leaves the fast path. LeftHostPort: it uses a host port of another pod, and
// leaves the fast path for the packets to and from the port of that pod. LeftLink: its link got a
// limit or a program of others. LeftPolicy: a policy selects it. LeftOff: no pod has it any more.
const (
	LeftHostPort = "host_port"
	LeftLink     = "link"
	LeftPolicy   = "policy"
	LeftOff      = "off"
)

// HandedOver counts connections and UDP flows of pods that left the fast path.
type HandedOver struct {
	// Tracked counts those that conntrack tracks from then on. Refused counts those that ended,
	// because their pod would have had more tracked connections than podConnections.
	Tracked uint64 `json:"tracked"`
	Refused uint64 `json:"refused"`
}

// Names of limits: the fields of services.limits in snake case, and LimitPodClients, which is not
// configurable.
const (
	LimitFrontends    = "frontends"
	LimitBackendSlots = "backend_slots"
	LimitSourceRanges = "source_ranges"
	LimitTCPFlows     = "tcp_flows"
	LimitOpeningFlows = "opening_flows"
	LimitUDPFlows     = "udp_flows"
	LimitFlowQuotas   = "flow_quotas"
	LimitPodClients   = "pod_clients"
)

// ServiceTable describes how full a map is.
type ServiceTable struct {
	Limit string `json:"limit"` // one of the constants above, such as LimitFrontends
	Used  uint32 `json:"used"`
	Size  uint32 `json:"size"`
}

// APIServer is a backend of the API servers' own service.
type APIServer struct {
	Addr netip.AddrPort `json:"addr"`
	Up   bool           `json:"up"`
	// Since is the time from which Up has its value; zero until the first check.
	Since time.Time `json:"since,omitzero"`
	// Connections is the number of connections of the node and its pods to the server. veild counts
	// them every 30 s.
	Connections int `json:"connections"`
	// State decides whether the server gets new connections. It is unknown, good, slow, hangs,
	// not_ready, certificate or silent.
	State string `json:"state"`
	// RoundTrip is the smoothed round trip of pings in nanoseconds. Zero means that it is unknown.
	RoundTrip time.Duration `json:"roundTripNanoseconds,omitzero"`
}

// APIFrontend is an address of services.apiFrontends. The node's own connections to it are
// translated to API servers.
type APIFrontend struct {
	Addr netip.AddrPort `json:"addr"`
	// Servers are the API servers that receive the connections. If there are none, the address is
	// not translated.
	Servers []netip.AddrPort `json:"servers"`
}

// APIClosed counts the connections that veild closed because their API server did not answer.
type APIClosed struct {
	// Waiting counts connections that were connecting or had unacknowledged data; Rest counts the
	// others.
	Waiting uint64 `json:"waiting"`
	Rest    uint64 `json:"rest"`
}

var (
	servicesDesc       = desc("services", "Services in the table of services.")
	servicesListedDesc = desc("services_listed",
		"Whether services were listed since veild began: 1 or 0.")
	serviceEntriesDesc = desc("service_table_entries",
		"Entries of the table of services in use, by map.", "table")
	serviceLimitDesc = desc("service_table_limit",
		"Maximum number of entries of the table of services, by map.", "table")
	serviceChosenDesc = desc("service_connections_total",
		"Connections and UDP flows to services for which a backend was chosen, by where: at a "+
			"socket or at a packet.",
		"where", "protocol")
	serviceRefusedDesc = desc("service_refused_total",
		"Connections and datagrams to services that were refused, by where (at a socket or at a "+
			"packet) and reason.", "where", "reason")
	fastPathLeftDesc = desc("service_fast_path_left_total",
		"How often a pod left the fast path of host routing by eBPF, by reason: host_port (only "+
			"for the packets to and from the port of one other pod), link (it got a limit or a "+
			"program of others), policy or off (hostRouting auto has seen a chain of another "+
			"program).", "reason")
	handedOverDesc = desc("service_handed_over_total",
		"Connections and UDP flows of pods that left the fast path of host routing by eBPF, by "+
			"outcome: tracked (by conntrack from then on) or refused (they end, because their pod "+
			"would have more tracked connections than podConnections).", "outcome")
	serviceFailuresDesc = desc("service_table_errors_total",
		"Attempts to write the table of services that failed in part or whole.")
	serviceProblemsDesc = desc("service_problems",
		"Services that are not served as their objects request.")
	serviceLeftOutDesc = desc("service_objects_left_out",
		"Services, EndpointSlices and external addresses of services that are not served, because "+
			"their namespace exceeds its share.", "kind", "namespace")
	apiServerDesc      = desc("api_server_up", "Whether an API server answers: 1 or 0.", "server")
	apiConnectionsDesc = desc("api_connections",
		"Connections of the node and its pods to an API server, counted every 30 s.", "server")
	apiStateDesc = desc("api_server_state",
		"1 for the state of an API server, which decides whether it gets new connections: "+
			"unknown, good, slow, hangs, not_ready, certificate (it cannot be verified) or "+
			"silent.", "server", "state")
	apiFrontendDesc = desc("api_frontend_servers",
		"API servers to which an address of services.apiFrontends is translated; 0 if it is not "+
			"translated.", "frontend")
	apiTripDesc = desc("api_server_round_trip_seconds",
		"Smoothed round-trip time of pings to an API server.", "server")
	siteClosedDesc = desc("service_site_connections_closed_total",
		"Connections of this node and its pods that veild closed because their node of another "+
			"cluster did not answer.")
	apiClosedDesc = desc("api_connections_closed_total",
		"Connections to API servers that do not answer, which veild closed: waiting (connecting, "+
			"or with data not acknowledged) or rest.", "which")
)

func collectServices(s *Services, gauge gaugeFunc, counter counterFunc) {
	if s == nil {
		return
	}
	gauge(servicesDesc, float64(s.Known))
	gauge(servicesListedDesc, one(s.Listed))
	gauge(serviceProblemsDesc, float64(s.Problems))
	counter(serviceFailuresDesc, s.Failures)
	for _, l := range s.LeftOut {
		gauge(serviceLeftOutDesc, float64(l.Count), l.Kind, l.Namespace)
	}
	for _, t := range s.Tables {
		gauge(serviceEntriesDesc, float64(t.Used), t.Limit)
		gauge(serviceLimitDesc, float64(t.Size), t.Limit)
	}
	for _, c := range s.Chosen {
		counter(serviceChosenDesc, c.Count, c.Where, c.What)
	}
	for _, c := range s.Refused {
		counter(serviceRefusedDesc, c.Count, c.Where, c.What)
	}
	for _, l := range s.FastPathLeft {
		counter(fastPathLeftDesc, l.Count, l.Reason)
	}
	counter(handedOverDesc, s.HandedOver.Tracked, "tracked")
	counter(handedOverDesc, s.HandedOver.Refused, "refused")

	for _, a := range s.APIServers {
		gauge(apiServerDesc, one(a.Up), a.Addr.String())
		gauge(apiStateDesc, 1, a.Addr.String(), a.State)
		if a.RoundTrip > 0 {
			gauge(apiTripDesc, a.RoundTrip.Seconds(), a.Addr.String())
		}
		gauge(apiConnectionsDesc, float64(a.Connections), a.Addr.String())
	}
	for _, f := range s.APIFrontends {
		gauge(apiFrontendDesc, float64(len(f.Servers)), f.Addr.String())
	}
	counter(apiClosedDesc, s.APIClosed.Waiting, "waiting")
	counter(apiClosedDesc, s.APIClosed.Rest, "rest")
	counter(siteClosedDesc, s.SiteClosed)
}

// newProgramming returns the histogram of the time until changes of services are in force.
func newProgramming() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: "service", Name: "programming_duration_seconds",
		Help: "Time from the arrival of a change of services or endpoints until it is in force. " +
			"Changes that are made together count once, from the first arrival.",
		Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .025, .05, .1, .25, .5, 1,
			2.5},
	})
}

// ObserveProgramming records how long a change of services took. The first call registers the
// metric, so that it does not exist without a table of services.
func (m *Metrics) ObserveProgramming(d time.Duration) {
	m.programmed.Do(func() { m.Registry.MustRegister(m.programming) })
	m.programming.Observe(d.Seconds())
}

// Pages of the admin socket about services. The answers are types of pkg/service: a list of View,
// which begins after ?after=NAMESPACE/NAME; a View for ?name=NAMESPACE/NAME; and a FrontView for
// ?addr=ADDRESS:PORT&protocol=TCP&scope=inside.
const (
	ServicesPath = "/v1/services"
	ServicePath  = "/v1/service"
	TracePath    = "/v1/service/trace"
)
