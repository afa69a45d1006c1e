package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// label sets the labels of the cases of a side at a rate.
func (s *run) label(name string, side side, rate int) {
	text := fmt.Sprintf("%s, %d GET/s", side.title, rate)
	for suffix, what := range map[string]string{"": ": P50", suffixP99: ": P99", suffixP90: ": P90",
		suffixMean: ": mean", suffixCPU: ": CPU per 10,000 requests",
		suffixMore: ": requests that only servers or only clients counted"} {
		s.Labels[name+suffix] = text + what
	}
}

// Report returns a report with the tables and notes of the parts that were chosen.
func (s *run) Report() *report.Report {
	return &report.Report{
		Title: "The way to the API servers: entry 0 beside the direct way and proxies, and when " +
			"servers fail",
		Lead: fmt.Sprintf("Latency is of a GET of a ConfigMap of %d bytes, over TLS 1.3 and HTTP/2 "+
			"with client certificates, from three servers in memory. All sides of a row were measured "+
			"directly after one another, in random order, in each round. Servers that fail are two "+
			"kube-apiservers with one etcd, in a lab with the whole veild.", len(server.Object)),
		Banner: "Namespaces", Tables: s.tables(), Notes: append(s.Notes, s.notes()...),
	}
}

// notes returns the notes of the parts that were chosen.
func (s *run) notes() (notes []string) {
	all := []struct{ parts, notes []string }{
		{latencies, s.latencyNotes()},
		{[]string{partFailure, partFailure6}, []string{
			fmt.Sprintf("%d clients of each kind in a pod and as many on the node send a request "+
				"every %v, over a connection each, without time limits. A wait begins at the "+
				"fault or, for the last fault, when the server is back. It ends when every client "+
				"of a kind has an answer to a request that it began after the fault.",
				client.HeldEach, client.HeldPeriod),
			fmt.Sprintf("%d watches in the pod and as many on the node follow an object that is written "+
				"every %v, and resume at the last version that they saw (client-go's RetryWatcher). A "+
				"wait ends at the first event of a write after the fault.",
				client.Watchers,
				client.WritePeriod),
			"Lost packets are dropped, while the server's link is up and its address resolves."}},
		{[]string{partHang}, []string{
			fmt.Sprintf("Handlers of a kube-apiserver hang because the disk of its audit log does: the "+
				"log is a pipe that is not read. It answers pings. A client in the pod and one on the "+
				"node each make a connection every %v; one without an answer in %v is lost.",
				client.FreshPeriod, client.FreshLimit)}},
		{[]string{partWell}, []string{
			"A kube-apiserver is not ready because its connections to etcd are reset. Paths that " +
				"need no etcd, such as /version, work. Packets of a slow server wait in NFQUEUE, " +
				"because not all kernels have netem. A connection counts as closed if its client " +
				"did not close it."}},
		{[]string{partRestart}, []string{
			fmt.Sprintf("Rolling restart: %d clients of client-go with its defaults, each with five "+
				"requests per second, and two kube-apiservers with %s. Connections are counted in the "+
				"clients' namespace.", fleetSize, goawayFlag)}},
		{[]string{partProbers}, []string{
			fmt.Sprintf("%d probers are veild's own code at the pace of a cluster of as many nodes. "+
				"They, the clients of %d GET/s, and the server share this machine.", s.Probers,
				probedRate)}},
	}

	for _, of := range all {
		if slices.ContainsFunc(of.parts, func(part string) bool {
			return slices.Contains(s.Parts, part)
		}) {
			notes = append(notes, of.notes...)
		}
	}
	return notes
}

func (s *run) latencyNotes() []string {
	return []string{
		fmt.Sprintf("Load is an open loop over %d connections. A latency counts from the moment "+
			"at which its request was due, so waiting for anything counts.", connections),
		"\"Direct\" dials a server's own address from the same place on the same node. " +
			"\"Again\" repeats the same measurement, so the difference between the two is noise.",
		"CPU is the busy time of the whole machine during the measurement: clients, servers, " +
			"proxies and kernel.",
		"A gate passes below its limit, or if ours differs from direct by no more than the " +
			"control did in its worst round.",
		"Proxies listen on loopback of the node, so their network is shorter than that of a " +
			"proxy on a machine of its own. The proxy that re-encrypts has the shape of " +
			"KubeGateway and is not KubeGateway: it is Go's httputil.ReverseProxy with " +
			"impersonation.",
		"Latencies do not contain the cost of veild's probes of the servers, because it does not " +
			"depend on the address that a client dials.",
		"A host process reaches entry 0 by the service's address, or by an address of " +
			"services.apiFrontends, which is in the kubeconfigs of kubelets.",
		fmt.Sprintf("%d rounds of samples of %v, order drawn with seed %d.", s.Rounds, s.Sample,
			s.Seed),
	}
}

// tables returns the tables that have rows.
func (s *run) tables() (all []report.Table) {
	if sides := s.sides(); len(sides.Rows) > 0 {
		all = append(all, sides, s.published())
	}
	for _, t := range []report.Table{s.failures(), s.others()} {
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// sides returns a table with a row for each side and rate.
func (s *run) sides() report.Table {
	t := report.Table{Title: "All sides",
		Note: "Medians of the rounds, and of the rounds' ratios to direct. CPU covers all " +
			"parties, per 10,000 requests. The last column is the difference between the " +
			"requests that servers counted and clients counted, over all rounds.",
		Head: []string{"GET/s", "side", "P50, µs", "to direct", "P99, µs", "to direct",
			"CPU, ms", "to direct",
			"requests off"}}
	for _, part := range latencies {
		for _, rate := range s.Rates {
			for _, side := range sidesOf(part) {
				if row := s.row(part, rate, side); row != nil {
					t.Rows = append(t.Rows, row)
				}
			}
		}
	}
	return t
}

// row returns the row of a side at a rate, or nil if it was not measured.
func (s *run) row(part string, rate int, side side) []string {
	group := fmt.Sprintf("%s_%d_", part, rate)
	row := []string{fmt.Sprint(rate), side.title}

	for _, suffix := range []string{"", suffixP99, suffixCPU} {
		// The side direct has no case of its own. Its figure is the base of the other sides' cases.
		c, of := s.Result.Find(group+side.name+suffix, 0), (*bench.Stat)(nil)
		if side.name == sideDirect {
			if c = s.Result.Find(group+sideAgain+suffix, 0); c != nil {
				of = c.Base
			}
		} else if c != nil {
			of = &c.Ours
		}
		if of == nil {
			return nil
		}
		ratio := "1"
		if side.name != sideDirect {
			ratio = fmt.Sprintf("%.3f (%.3f to %.3f)", c.Ratio.Median, c.Ratio.Min, c.Ratio.Max)
		}
		row = append(row, bench.Count.Format(of.Median), ratio)
	}

	more := "–"
	if c := s.Result.Find(group+side.name+suffixMore, 0); c != nil {
		more = fmt.Sprintf("%.0f", c.Ours.Median)
	}
	return append(row, more)
}

// published returns a table with the figures of KubeGateway's document and the ratios of this run.
func (s *run) published() report.Table {
	t := report.Table{Title: "Beside the table that KubeGateway published",
		Note: fmt.Sprintf("KubeGateway's is of its document: GET of a ConfigMap at 5,000 requests/s, "+
			"one gateway, one API server and three etcd on machines of their own, TLS client certificates; "+
			"milliseconds. Ours are ratios to direct at %s GET/s.", numbers(s.Rates)),
		Head: []string{"", "KubeGateway: direct", "through it", "ratio", "entry 0 from a pod",
			"entry 0 from the node", "TCP proxy", "haproxy", "proxy of its shape"}}

	for _, line := range []struct{ what, direct, through, ratio, suffix string }{
		{"P50", "1.14", "1.65", "1.45", ""}, {"P90", "1.31", "2.01", "1.54", suffixP90},
		{"P99", "15.6", "26.5", "1.70", suffixP99}, {"mean", "1.62", "2.61", "1.61", suffixMean},
	} {
		row := []string{line.what, line.direct, line.through, line.ratio}
		for _, of := range [][2]string{{partPod, sideOurs}, {partHost, sideService}, {partHost, sideTCP},
			{partHost, sideHAProxy}, {partHost, sideReTLS}} {
			var ratios []string
			for _, rate := range s.Rates {
				text := "–"
				if c := s.Result.Find(fmt.Sprintf("%s_%d_%s%s", of[0], rate, of[1], line.suffix),
					0); c != nil {
					text = fmt.Sprintf("%.2f", c.Ratio.Median)
				}
				ratios = append(ratios, text)
			}
			row = append(row, strings.Join(ratios, " · "))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func numbers(list []int) string {
	var out []string
	for _, n := range list {
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, " · ")
}
