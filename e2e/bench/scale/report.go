package scale

import (
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// label sets the titles of the cases of n endpoints.
func (s *run) label(n int) {
	what := fmt.Sprintf("%d endpoints listed and programmed", n)
	s.labelCase(caseList(n), what)
	s.labelCase(caseList(n)+toLoop, what)
}

// kindTexts describe the kinds of endpoints besides TCP.
var kindTexts = map[string]string{kindUDP: "half of the services of UDP", kindIPv6: "IPv6",
	kindWhole: "all of one service"}

// labelCase sets the titles of a case and of its further quantities.
func (s *run) labelCase(name, what string) {
	s.Labels[name] = what
	for suffix, text := range map[string]string{
		suffixProcessor: "CPU time of the node's process",
		suffixUsable:    "from the last object decoded to the last frontend usable",
		suffixPeak:      "peak of resident memory",
		suffixHeap:      "heap after a collection",
		suffixMaps:      "kernel memory of the maps, none of flows",
		suffixEmpty:     "kernel memory of the maps before the list",
		suffixChange:    "one endpoint changes, from the decoded slice to the written frontend",
		suffixMost:      "one endpoint changes, 99th percentile",
		suffixAmid:      "one endpoint changes amid a storm, 99th percentile",
		suffixSettled:   "from the last event of the storm to the last write",
		suffixWritten:   "until the last answer to the writer",
		suffixServer:    "CPU time of kube-apiserver",
		suffixEtcd:      "CPU time of etcd",
		suffixWriter:    "CPU time of the writer",
	} {
		s.Labels[name+suffix] = what + ": " + text
	}
}

// published are the times that Arion's authors publish, in seconds, by the number of endpoints.
var published = map[int]float64{100_000: 0.60, 1_000_000: 5.89}

// curve returns the table with a row for each number of endpoints.
func (s *run) curve() report.Table {
	t := report.Table{Title: "Listed and programmed",
		Note: "Medians of the rounds. The last column was measured by others on other machines: it " +
			"shows the order of magnitude, and cannot be compared.",
		Head: []string{"endpoints", "ours", "per endpoint", "loop", "ratio", "CPU, ratio",
			"Arion, published"}}
	for _, n := range s.Sizes {
		wall := s.Result.Find(caseList(n)+toLoop, 0)
		cpu := s.Result.Find(caseList(n)+toLoop+suffixProcessor, 0)
		if wall == nil || cpu == nil {
			continue
		}
		theirs := "–"
		if seconds, has := published[n]; has {
			theirs = fmt.Sprintf("%.2f s", seconds)
		}
		t.Rows = append(t.Rows, []string{fmt.Sprint(n), wall.Unit.Format(wall.Ours.Median),
			bench.Microsecond.Format(1000 * wall.Ours.Median / float64(n)),
			wall.Unit.Format(wall.Base.Median), s.RatioText(wall.Name), s.RatioText(cpu.Name),
			theirs})
	}
	return t
}

// written returns the table of endpoints that are written to a real API server.
func (s *run) written() report.Table {
	t := report.Table{Title: "Written, watched and programmed",
		Note: "CPU times count while endpoints are written and programmed. All processes share " +
			"this machine. What others publish is per endpoint.",
		Head: []string{"endpoints", "ours", "per endpoint", "writer alone", "ratio",
			"kube-apiserver", "etcd", "writer", "node", "Arion, published"}}
	for _, n := range s.Sizes {
		name := caseOf(partWrite, n)
		wall := s.Result.Find(name+toAlone, 0)
		if wall == nil {
			continue
		}
		row := []string{fmt.Sprint(n), wall.Unit.Format(wall.Ours.Median),
			bench.Microsecond.Format(1000 * wall.Ours.Median / float64(n)),
			wall.Unit.Format(wall.Base.Median), s.RatioText(wall.Name)}
		for _, suffix := range []string{suffixServer, suffixEtcd, suffixWriter, suffixProcessor} {
			row = append(row, s.MedianText(name+suffix))
		}
		theirs := "–"
		if each, has := publishedWritten[n]; has {
			theirs = bench.Microsecond.Format(each)
		}
		t.Rows = append(t.Rows, append(row, theirs))
	}
	return t
}

// publishedWritten are the times per endpoint that Arion's authors publish for endpoints that are
// written, watched and programmed, in microseconds, by the number of endpoints.
var publishedWritten = map[int]float64{100_000: 38, 1_000_000: 39}

// Report returns the report.
func (s *run) Report() *report.Report {
	return &report.Report{
		Title: "A million endpoints",
		Lead: "From a list of services and endpoints to a written table, by the packages that " +
			"veild runs, beside a loop of small messages.",
		Tables: []report.Table{s.curve(), s.written()},
		Notes: append(s.Notes,
			"The feed is another process in the same network namespace. It sends over TLS and "+
				"HTTP/2 what it has encoded before: Services and EndpointSlices of 100 endpoints "+
				"in protobuf, with managed fields, in streaming lists.",
			"The loop reads a message of some 60 bytes for each endpoint from the same feed, and "+
				"updates a hash map with one system call. That is the shape of Arion's agent, "+
				"without its gRPC.",
			"The real API server is kube-apiserver with etcd, whose data is in memory. The client "+
				"beside the node requests the same streaming lists and drops what it reads.",
			fmt.Sprintf("The writer has encoded the slices before and creates them in protobuf, "+
				"with %d requests in flight. Their services exist. The API server adds managed "+
				"fields. No controller runs.", apiwrite.Parallel),
			"A frontend counts as usable when the batch call that wrote it has returned. No program "+
				"is attached.",
			"Single changes follow each other after the list, each when the one before is written, "+
				"at most 200 a second. A storm deletes the slices of half of the services and puts "+
				"them back, 50,000 endpoints a second.",
			"Each measurement is a new process. Its CPU time and peak memory are from the kernel.",
			"Each figure is the median of the rounds. Limits of times without a ratio are judged by "+
				"the best round.",
		),
	}
}
