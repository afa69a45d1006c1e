package bpf

// ServiceCount is a counter of the programs of services: of choices of a backend, or of refusals.
type ServiceCount struct {
	// Constant is its name in enum service_count (lib/service/count.h), without COUNT_.
	Constant string
	// Where is "socket" for a program at sockets, and "packet" for a program at links.
	Where string
	// Name is the protocol for which a backend was chosen or, for a refusal, its reason. It is the
	// label in metrics. An empty name means that the counter is not a metric.
	Name string
	// Sentence explains a refusal to an operator. It is empty for other counters.
	Sentence string
}

// Reason returns the name of the refusal as a drop reason, or "" if the counter does not count
// refusals. Refusals at links and at sockets have the same names.
func (c ServiceCount) Reason() string {
	if c.Sentence == "" {
		return ""
	}
	return "service_" + c.Name
}

// IsOfSocket reports whether a program at sockets increments the counter.
func (c ServiceCount) IsOfSocket() bool { return c.Where == "socket" }

// SampledService is the reason number in samples for the first counter of ServiceCounts. The
// numbers of the other counters follow in their order (SAMPLE_SERVICE in lib/packet/sample.h).
const SampledService = 256

// ServiceCounts has all counters of the programs of services, in the order of enum service_count. A
// new counter must come last, because the map of counters stays in use across an upgrade.
var ServiceCounts = []ServiceCount{
	{"SOCKET_TCP", "socket", "tcp", ""},
	{"SOCKET_UDP", "socket", "udp", ""},
	{"SOCKET_REFUSED", "socket", "no_backend", "The service has no backend."},
	{"SOCKET_UNSTEADY", "socket", "unsteady",
		"The entry of the service changed at each look-up. The count should stay 0."},
	{"PACKET_TCP", "packet", "tcp", ""},
	{"PACKET_UDP", "packet", "udp", ""},
	{"PACKET_REFUSED", "packet", "no_backend", "The service has no backend."},
	{"PACKET_LOCAL", "packet", "not_here", "The traffic policy of the service is Local, and this " +
		"node has no backend. A load balancer then chooses another node."},
	{"PACKET_SOURCE", "packet", "source", "The client is not in `loadBalancerSourceRanges`."},
	{"PACKET_UNSTEADY", "packet", "unsteady",
		"The entry of the service changed at each look-up. The count should stay 0."},
	{"PACKET_ADDRESS", "packet", "no_address", "This node has no address for SNAT."},
	{"PACKET_PORT", "packet", "no_port",
		"No port for SNAT was free, or the flow table or the table of pod clients had no room."},
	{"PACKET_MOVED", "packet", "", ""},
	{"PACKET_HOST_PORT", "packet", "", ""},
	{"PACKET_FRAGMENT", "packet", "fragment", "A fragment came before the first one of its " +
		"datagram, which has the ports."},
}
