package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Names of cases that are not part of the matrix.
const (
	caseReady       = "apply_to_nodes_ready"
	caseGuardCost   = "guard_program"
	caseGuardShare  = "guard_share"
	caseFirst       = "new_pod_to_first_byte"
	caseChurnCPU    = "churn_veild_cpu"
	caseChurnMemory = "churn_veild_memory"
	caseChurnRate   = "churn_pods_per_minute"
)

var quantityLabels = map[string]string{"tcp_1": "TCP, 1 stream", "tcp_8": "TCP, 8 streams",
	"udp": "UDP, ≤ 0.5 % loss", "rr": "request and response, median"}

// labels returns the titles of the cases, keyed by name.
func labels() map[string]string {
	out := map[string]string{
		caseReady:       "kubectl apply until all nodes are Ready",
		caseFirst:       "New pod to its first bytes across nodes",
		caseChurnCPU:    "veild under churn of 50 pods a minute, CPU of one core",
		caseChurnMemory: "veild under churn, resident memory",
		caseGuardCost:   "The guard's program, each packet at a link",
		caseGuardShare: "Share of a processor of each node that the guard's programs take, at " +
			"the rate of UDP that ours carries",
		caseChurnRate: "Churn that was reached, pods a minute",
	}
	for name, label := range quantityLabels {
		out["pod_"+name], out["service_"+name] = "Pod to pod, "+label, "Pod to service, "+label
		out["pod_"+name+clearSuffix], out["service_"+name+clearSuffix] = "Pod to pod, "+label,
			"Pod to service, "+label
		out[name+serviceSuffix] = "Pod to service, " + label
	}
	for _, c := range caps {
		link := " over a link of " + rateName(c.name)
		out["pod_tcp_1_link_"+c.name+clearSuffix] = "TCP, 1 stream," + link
		out["pod_udp_link_"+c.name+clearSuffix] = "UDP, ≤ 0.5 % loss," + link
	}
	return out
}

// rateName returns the rate in the name of a cap as text: "15 Mbit/s" for 15_mbit.
func rateName(name string) string {
	return strings.NewReplacer("_", " ", "mbit", "Mbit/s", "gbit", "Gbit/s").Replace(name)
}

// banners holds the report's banner for each platform.
var banners = map[string]string{
	bench.Emulated: "Emulated machines", bench.VM: "Virtual machines",
	bench.SEVSNP: "Confidential VMs: AMD SEV-SNP",
	bench.TDX:    "Confidential VMs: Intel TDX", bench.Metal: "Real machines",
}

// Report returns the report with the tables and notes of all parts.
func (s *run) Report() *report.Report {
	p := s.bed.Client().Platform
	return &report.Report{
		Title: "Kubeveil on a cluster: pod to pod and pod to service across two nodes",
		Lead: fmt.Sprintf("%s and %s: %s, %s, %d CPUs, kernel %s. Concluded from: %s.",
			s.bed.Client().Name, s.bed.Server().Name, p.Machine, p.Processor, p.CPUs,
			p.Kernel, p.Why),
		Banner: banners[s.Result.Platform],
		Tables: []report.Table{s.matrixTable(), s.publishedTable()},
		Notes: append(slices.Clone(notes), fmt.Sprintf("%d rounds, order drawn with seed %d.",
			s.Rounds, s.Seed)),
	}
}

// matrixTable returns the matrix as a table with a row for each destination, MTU and side.
func (s *run) matrixTable() report.Table {
	t := report.Table{
		Title: "Bandwidth and latency", Head: []string{"", "MTU", "side", "TCP, 1 stream",
			"TCP, 8 streams", "UDP, ≤ 0.5 % loss", "round trip p50", "p99", "core-s/GB, TCP 8"},
		Note: "Medians. Ours also in relation to bare WireGuard and to the network in clear, the " +
			"median of the ratios formed in each round. CPU covers both nodes.",
	}
	for _, destination := range []string{"pod", "service"} {
		for _, mtu := range s.measuredMTUs() {
			for _, line := range []struct{ side, suffix string }{{sideOurs, ""}, {sideBare, ""},
				{sideClear, clearSuffix}} {
				t.Rows = append(t.Rows, s.matrixRow(destination, mtu, line.side, line.suffix))
			}
		}
	}
	return t
}

func (s *run) matrixRow(destination string, mtu int, side, suffix string) []string {
	row := []string{"pod to " + destination, fmt.Sprint(mtu),
		map[string]string{sideOurs: "Kubeveil", sideBare: baseBare, sideClear: baseClear}[side]}
	for _, name := range []string{"tcp_1", "tcp_8", "udp", "rr", "rr" + "%s_p99",
		"tcp_8" + "%s_cpu"} {
		if strings.Contains(name, "%s") {
			name = fmt.Sprintf(name, suffix)
		} else {
			name += suffix
		}
		row = append(row, cellOf(s.Result.Find(destination+"_"+name, mtu),
			s.Result.Find(destination+"_"+withClear(name), mtu), side))
	}
	return row
}

// withClear returns the name of the case that compares with the network in clear instead.
func withClear(name string) string {
	for _, tail := range []string{"_p99", "_cpu"} {
		if base, ok := strings.CutSuffix(name, tail); ok {
			return strings.TrimSuffix(base, clearSuffix) + clearSuffix + tail
		}
	}
	return strings.TrimSuffix(name, clearSuffix) + clearSuffix
}

// cellOf returns one cell of the matrix: for our side the figure with its ratios to bare WireGuard
// and to the network in clear, for another side the figure alone. c compares with bare WireGuard or
// is nil; toClear compares with the network in clear or is nil.
func cellOf(c, toClear *bench.Case, side string) string {
	if c == nil {
		c = toClear
	}
	switch {
	case c == nil:
		return "–"
	case side != sideOurs && c.Base == nil, side == sideBare && c.BaseName != baseBare:
		return "–"
	case side != sideOurs:
		return c.Unit.Format(c.Base.Median)
	}
	text := c.Unit.Format(c.Ours.Median)
	for _, against := range []*bench.Case{c, toClear} {
		if against != nil && against.Ratio != nil &&
			(against == c) == (against.BaseName == baseBare) {
			text += fmt.Sprintf("\n%s %s", change(against.Ratio.Median),
				map[string]string{baseBare: "to bare", baseClear: "to clear"}[against.BaseName])
		}
	}
	return text
}

// change returns a ratio as a signed percentage: "−10.0 %" for 0.9.
func change(ratio float64) string {
	text := fmt.Sprintf("%+.1f\u00a0%%", (ratio-1)*100)
	return strings.Replace(text, "-", "−", 1)
}

// measuredMTUs returns the MTUs of the matrix, ascending.
func (s *run) measuredMTUs() []int {
	var out []int
	for _, c := range s.Result.Cases {
		if strings.HasPrefix(c.Name, "pod_tcp_8") && !slices.Contains(out, c.MTU) {
			out = append(out, c.MTU)
		}
	}
	slices.Sort(out)
	return out
}

// published holds figures of encrypted pod networks from the documents of other projects, relative
// to the same network in clear.
var published = [][]string{
	{"Constellation 2.6, Azure DC4as_v5, 1.25 Gbit/s", "1500", "−10 %", "−40 %"},
	{"Constellation 2.6, GCP n2d-standard-4, 10 Gbit/s", "8896", "−58 %", "slightly better"},
	{"Constellation 2.14, Azure", "1500", "−10 %", "−40 %"},
	{"Constellation 2.14, GCP", "8896", "−48 %", "–"},
	{"Constellation 2.14, AWS", "–", "−96 %", "−97 %"},
	{"Cilium WireGuard, 40 Gbit/s (ITNEXT 2024), 8 streams", "9000", "−78 % (8.5 of 39.3 Gbit/s)",
		"–"},
}

// publishedTable returns a table with the published figures and ours.
func (s *run) publishedTable() report.Table {
	t := report.Table{
		Title: "Published figures: the cost of encryption against the network in clear",
		Head:  []string{"", "MTU", "TCP", "UDP"},
		Note: "Published ones are from other machines and are to be read as such; " +
			"Constellation's " +
			"baselines are managed services. " + s.Result.Caveat(),
	}
	add := func(name string, mtu int, tcp, udp string) {
		cells := []string{name, fmt.Sprint(mtu)}
		for _, c := range []*bench.Case{s.Result.Find(tcp, mtu), s.Result.Find(udp, mtu)} {
			text := "–"
			if c != nil && c.Ratio != nil {
				text = change(c.Ratio.Median)
			}
			cells = append(cells, text)
		}
		if cells[2] != "–" || cells[3] != "–" {
			t.Rows = append(t.Rows, cells)
		}
	}

	for _, c := range caps {
		add("Kubeveil here, link of "+rateName(c.name), c.mtu, "pod_tcp_1_link_"+c.name+clearSuffix,
			"pod_udp_link_"+c.name+clearSuffix)
	}

	for _, mtu := range s.measuredMTUs() {
		add("Kubeveil here, 8 streams, link not limited", mtu, "pod_tcp_8"+clearSuffix,
			"pod_udp"+clearSuffix)
	}

	t.Rows = append(t.Rows, published...)
	return t
}

var notes = []string{
	"bare WireGuard: the same pods use a second interface, whose packets are routed into a " +
		"device of the kernel's WireGuard that was configured by hand, with Kubeveil's MTU and " +
		"queue length. The device and the node's end of that interface are in a network " +
		"namespace of their own, with rules like those of kube-proxy, one of which translates " +
		"the service. Nothing of Kubeveil processes its packets before they are encrypted, so " +
		"the difference between the two sides is the cost of Kubeveil.",
	"in clear: the same pods use a third interface with the underlay's MTU, whose packets have " +
		"plain routes between the nodes, as with the reference plugin ptp.",
	"Before and after each sample, the links' counters were read on both nodes. A figure counts " +
		"only if its own path carried the traffic and the other paths did not.",
	"In clear passes the guard's program at one more link of each node than ours. That favours " +
		"ours by about the time of the guard's program per packet, which is measured below. " +
		"kube-proxy masquerades packets in clear to a service, because their addresses are " +
		"outside the pod ranges.",
	"Throughput is payload received, by iperf3, without the first second. UDP: bisection to 2 %; " +
		"a rate that loses more than 0.5 % is measured a second time before it counts as too " +
		"high. Datagrams fill one packet of the interface's MTU.",
	fmt.Sprintf("In each round, every side was measured %d times by TCP and %d times by UDP, one "+
		"side after the other. Request and response was measured %d times, all sides at once. The "+
		"round's figure is the mean.", tcpTurns, udpTurns, tripsTurns),
	"Request and response: 64 bytes each way over a TCP connection to each destination. The " +
		"order of the destinations is random each time, so that other load of the nodes affects " +
		"all. It ends after a thousand transactions with each, or after four times the minimum time.",
	"CPU is the busy time of all processors of both nodes, load generator included, from " +
		"/proc/stat.",
	"The search for plaintext read the underlay's link of both nodes while pods exchanged " +
		"messages with a canary, and had to find the canary in the control over the network in " +
		"clear. It did not run during the load, because it would disturb the load.",
	"New pods were started one after the other. The time is from the request that creates the " +
		"pod to the arrival of its bytes at a pod of the other node.",
}
