package network

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

var sampleDir = flag.String("sample", "",
	"directory to which the page of the tests is written, to be looked at")

func TestCarried(t *testing.T) {
	const least = 1_000_000

	for name, tt := range map[string]struct {
		side string
		c    carried
		ok   bool
	}{
		"ours by ours":                  {sideOurs, carried{ours: 2 * least}, true},
		"ours, and other pods use ours": {sideOurs, carried{ours: 9 * least}, true},
		"ours that went bare":           {sideOurs, carried{bare: 2 * least}, false},
		"ours, with much in clear besides": {sideOurs, carried{ours: 2 * least, clear: least},
			false},
		"bare by bare, with a keepalive": {sideBare, carried{bare: 2 * least, ours: 3000},
			true},
		"bare inside ours": {sideBare, carried{bare: 2 * least, ours: 2 * least},
			false},
		"clear that was encrypted on the way": {sideClear,
			carried{clear: 2 * least, ours: 2 * least}, false},
		"clear in clear": {sideClear, carried{clear: 2 * least}, true},
		"nothing at all": {sideClear, carried{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.c.check(tt.side, least); (err == nil) != tt.ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

// If all targets are measured at once, checkAll finds a path that carried less than its own
// traffic.
func TestCarriedTogether(t *testing.T) {
	least := map[string]uint64{sideOurs: 2000, sideBare: 2000, sideClear: 2000}
	if err := (carried{ours: 9000, bare: 2100, clear: 2100}).checkAll(least); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]carried{"half of bare by ours": {ours: 3000, bare: 1000,
		clear: 2000}, "nothing in clear": {ours: 4000, bare: 2000}} {
		if c.checkAll(least) == nil {
			t.Errorf("%s is not seen", name)
		}
	}
	if err := (carried{ours: 2000}).checkAll(map[string]uint64{sideOurs: 2000}); err != nil {
		t.Errorf("a side that does not exist is missed: %v", err)
	}
}

func TestCarriedBetween(t *testing.T) {
	at := func(veil0, veil1, bare, clear uint64) [2]session.Counters {
		return [2]session.Counters{
			{Sent: map[string]uint64{"veil0": veil0, "veil1": veil1, session.BareDevice: bare,
				"eth0": 7}},
			{Sent: map[string]uint64{session.HostClearLink: clear, "veil0": 99}},
		}
	}
	if got, want := carriedBetween(at(1, 2, 3, 4), at(11, 22, 33, 44)),
		(carried{ours: 30, bare: 30, clear: 40}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// measuredCase returns a case against a base, with as many rounds as a test needs.
func measuredCase(name string, mtu int, ours, base float64, baseName string) bench.Case {
	b := bench.Summarize([]float64{base})
	r, _ := bench.Ratios([]float64{ours}, []float64{base})
	unit := bench.Mbps
	if strings.HasSuffix(name, "_cpu") {
		unit = bench.CoreSecondsPerGB
	}
	return bench.Case{Name: name, MTU: mtu, Unit: unit, Ours: bench.Summarize([]float64{ours}),
		Base: &b, BaseName: baseName, Ratio: &r}
}

// withCases returns a run on emulated machines that has measured cases.
func withCases(cases ...bench.Case) *run {
	return &run{Run: &suite.Run{Result: &bench.Result{Platform: bench.Emulated, CPUs: 2,
		Cases: cases}}}
}

func TestMatrixTable(t *testing.T) {
	s := withCases(
		measuredCase("pod_tcp_8", 1500, 33, 34, baseBare),
		measuredCase("pod_tcp_8_cpu", 1500, 300, 310, baseBare),
		measuredCase("pod_tcp_8_to_clear", 1500, 33, 330, baseClear),
		measuredCase("pod_tcp_8_to_clear_cpu", 1500, 300, 30, baseClear))
	table := s.matrixTable()
	var eight, cpu []string
	for _, row := range table.Rows[:3] {
		if len(row) != len(table.Head) {
			t.Fatalf("%d cells, want %d", len(row), len(table.Head))
		}
		eight, cpu = append(eight, row[4]), append(cpu, row[8])
	}
	if want := []string{"33.0 Mbit/s\n−2.9\u00a0% to bare\n−90.0\u00a0% to clear", "34.0 Mbit/s",
		"330 Mbit/s"}; !slices.Equal(eight, want) {
		t.Errorf("%q, want %q", eight, want)
	}
	if want := []string{"300 core-s/GB\n−3.2\u00a0% to bare\n+900.0\u00a0% to clear",
		"310 core-s/GB", "30.0 core-s/GB"}; !slices.Equal(cpu, want) {
		t.Errorf("%q, want %q", cpu, want)
	}
	if row := table.Rows[3]; row[4] != "–" {
		t.Errorf("a service that was not measured has %q", row[4])
	}
}

func TestPublishedTable(t *testing.T) {
	s := withCases(
		measuredCase("pod_tcp_1_link_15_mbit_to_clear", 1500, 13.7, 14.3, baseClear),
		measuredCase("pod_udp_link_15_mbit_to_clear", 1500, 13.8, 14.4, baseClear))
	table := s.publishedTable()
	if want := []string{"Kubeveil here, link of 15 Mbit/s", "1500", "−4.2\u00a0%",
		"−4.2\u00a0%"}; !slices.Equal(table.Rows[0], want) {
		t.Errorf("%q, want %q", table.Rows[0], want)
	}
	for _, row := range table.Rows {
		if len(row) != len(table.Head) {
			t.Errorf("%q has %d cells, want %d", row[0], len(row), len(table.Head))
		}
	}
}

// invented returns a run on two invented nodes.
func invented() *run {
	p := session.Platform{Name: bench.Emulated,
		Why: "the machine is QEMU without KVM's clock", Kernel: "6.1.0", CPUs: 2,
		Processor: "Nehalem", Machine: "QEMU Standard PC"}
	s := &run{
		bed:    &testbed.Bed{Nodes: [2]*testbed.Place{{Platform: p}, {Platform: p}}},
		wiring: &testbed.Wiring{Services: testbed.ServiceAddrs(DefaultPrefix)},
		Run: &suite.Run{Result: &bench.Result{Schema: bench.Schema, Platform: bench.Emulated,
			CPUs: 2, Kernel: "6.1.0", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Leaks: &bench.Leaks{Frames: 9000, ControlPlaintext: 800}}},
	}
	s.setDefaults()
	s.bed.Nodes[0].Name, s.bed.Nodes[1].Name = "node-1", "node-2"
	return s
}

// figure returns an invented sample of a side.
func figure(unit bench.Unit, side string, round float64) bench.Sample {
	v := map[string]float64{sideOurs: 33, sideBare: 33.4, sideClear: 310}[side] * (1 + round/50)
	if unit == bench.Millisecond {
		return bench.Sample{Value: 60 / v, P99: 150 / v}
	}
	return bench.Sample{Value: v, CPU: 9000 / v}
}

// Figures are measured, paired, judged and shown in the report.
func TestReport(t *testing.T) {
	s := invented()
	for _, mtu := range []int{1500, 8896} {
		s.at = testbed.MTUs{Underlay: mtu, Pod: mtu - 80}
		var groups []bench.Group
		for _, q := range s.quantities() {
			round := 0.0
			q.together = nil
			q.measure = func(to target) bench.Measure {
				return func(context.Context) (bench.Sample, error) {
					round++
					return figure(q.unit, to.side, float64(int(round)%5)), nil
				}
			}
			groups = append(groups, s.group(q))
		}
		cases, err := (&bench.Runner{Rounds: 5, Seed: 1}).RunGroups(t.Context(), groups)
		errtest.Must(t, err)
		s.Result.Cases = append(s.Result.Cases, cases...)
	}

	s.Result.Cases = append(s.Result.Cases,
		measuredCase("pod_tcp_1_link_15_mbit_to_clear", 1500, 13.7, 14.3, baseClear),
		measuredCase("pod_udp_link_15_mbit_to_clear", 1500, 13.8, 14.4, baseClear))
	var err error
	if s.Result.Gates, err = bench.Judge(s.Result, Suite); err != nil {
		t.Fatal(err)
	}
	errtest.Check(t, s.Result.Validate())

	for _, g := range s.Result.Gates {
		if strings.HasPrefix(g.Got, "not measured") {
			t.Errorf("the gate %q found no case", g.Name)
		}
	}

	dir := t.TempDir()
	if *sampleDir != "" {
		dir = *sampleDir
	}
	rep := s.Report()
	rep.Result, rep.Labels = s.Result, labels()
	errtest.Must(t, rep.WriteHTML(filepath.Join(dir, "report.html")))
	page := filetest.Read(t, filepath.Join(dir, "report.html"))

	for _, want := range []string{`class="banner">Emulated machines<`, "Constellation",
		"Ours / bare WireGuard", "Pod to service, UDP", "node-1 and node-2"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestEstimate(t *testing.T) {
	short := Options{Choice: suite.Choice{Rounds: 1}, TCP: time.Second, Churn: -1}.Estimate()
	if usual := (Options{MTUs: []int{8896, 1500}}).Estimate(); usual < 20*time.Minute ||
		usual > 60*time.Minute || short > 7*time.Minute {
		t.Errorf("the usual run takes %v, a short one %v", usual, short)
	}
}

func TestEveryCaseOfTheGatesHasALabel(t *testing.T) {
	known := labels()
	for _, platform := range []string{bench.Emulated, bench.Metal} {
		gates, err := bench.Judge(&bench.Result{Platform: platform}, Suite)
		errtest.Must(t, err)
		for _, g := range gates {
			name, _, _ := strings.Cut(g.Name, ",")
			if _, ok := known[name]; !ok && !strings.Contains(name, " ") {
				t.Errorf("%s: the gate %q judges a case that the suite does not have", platform,
					g.Name)
			}
		}
	}
}
