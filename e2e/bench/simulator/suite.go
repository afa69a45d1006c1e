package simulator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in gates.json.
const Suite = "bench-simulator"

// benchmark has the parts in the order in which they run.
var benchmark = suite.Suite[*run]{Name: Suite, Look: 2 * time.Second, Parts: []suite.Part[*run]{
	{Name: partNodes, Run: (*run).nodes},
	{Name: partCold, Run: (*run).cold},
	{Name: partChurn, Run: (*run).churn},
	{Name: partDelete, Run: (*run).delete},
	{Name: partCut, Run: (*run).cut},
	{Name: partKill, Run: (*run).kill},
	{Name: partRestart, Run: (*run).restart},
	{Name: partBad, Run: (*run).bad},
	{Name: partChange, Run: (*run).change},
	{Name: partRemove, Run: (*run).remove},
	{Name: partSilent, Run: (*run).silent},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// RunConfig chooses the size and the times. The zero value is not valid.
type RunConfig struct {
	// Choice has Rounds, which must be 1.
	suite.Choice
	// Nodes is the number of Nodes, of VeilNodes and of Services, from 10 to 10,000.
	Nodes int
	// Churn is the duration of part churn.
	Churn time.Duration
	// Settle is the time from the end of a scenario to the measurement of the idle node, and Idle
	// the duration of that measurement.
	Settle, Idle time.Duration
}

// mostNodes is the number of nodes for which there are addresses.
const mostNodes = 10_000

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
	switch {
	case o.Rounds != 1:
		return fmt.Errorf("%d rounds: want 1", o.Rounds)
	case o.Nodes < 10 || o.Nodes > mostNodes:
		return fmt.Errorf("%d nodes: want 10 to %d", o.Nodes, mostNodes)
	case o.Churn < 0 || o.Settle < 0:
		return fmt.Errorf("churn of %v, %v to settle: want no less than 0", o.Churn, o.Settle)
	case o.Idle < time.Second:
		return fmt.Errorf("idle for %v: want at least 1s", o.Idle)
	}
	return benchmark.Check(o.Choice)
}

// Estimate returns the approximate duration of a run.
func (o RunConfig) Estimate() time.Duration {
	each := o.Settle + o.Idle + time.Duration(o.Nodes)*10*time.Millisecond
	return o.Churn + time.Duration(len(o.Parts))*each
}

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	shape  apifeed.Shape
	lab    *lab.Lab
	node   *lab.Node
	second *lab.Node // its programs run in part nodes, and from part remove on
	writer *apiwrite.Writer
	// filled reports whether the API server has the services.
	filled bool
	// started reports whether part cold has run, or its first half for the other parts.
	started bool
	// listed is the number of bytes that veild reads until it has listed everything.
	listed int64
}

// Run runs the chosen scenarios and returns the report. If an error ends the run after it began, Run
// returns it beside a report of the results so far. A missed gate is not an error. Run needs root.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r, shape: apifeed.Shape{Endpoints: o.Nodes * perService,
			PerService: perService}}
		return s, s.prepare(ctx)
	})
}

// perService is the number of endpoints of a service.
const perService = 100

// Ranges that have room for 10,000 services. The API server's certificate names the first address
// of the range.
const serviceRange = "198.18.128.0/17"

// prepare makes the lab and writes the nodes. The programs of the node do not run yet.
func (s *run) prepare(ctx context.Context) (err error) {
	s.lab, err = lab.New(ctx, lab.Options{Nodes: 2, NoBoot: true, Family: lab.IPv4, Offloads: true,
		Streams: true,
		APIServerFlags: func(int) []string {
			return []string{"--service-cluster-ip-range=" + serviceRange}
		},
		VeildConfig: map[string]any{"serviceProxy": "ebpf", "logLevel": "info",
			"serviceRanges": []string{serviceRange}}})
	if err != nil {
		return err
	}
	s.node, s.second = s.lab.Nodes()[0], s.lab.Nodes()[1]
	if _, err := s.lab.Oracle.Stop(); err != nil { // it would read each byte of the lists
		return err
	}
	if s.writer, err = apiwrite.New(s.lab.Control.Config); err != nil {
		return err
	}

	return s.createNodes(ctx, 0, s.Nodes)
}

// fill writes the services and their slices, once.
func (s *run) fill(ctx context.Context) error {
	if s.filled {
		return nil
	}
	s.filled = true
	began := time.Now()
	if err := errors.Join(s.createNamespaces(ctx), s.createServices(ctx),
		s.createSlices(ctx)); err != nil {
		return err
	}
	s.Progress("%d services and slices of %d endpoints are written after %.1f s", s.Nodes,
		perService, time.Since(began).Seconds())
	return nil
}

// Close removes the lab.
func (s *run) Close() error {
	if s.lab == nil {
		return nil
	}
	return s.lab.Close()
}

// Report returns the report.
func (s *run) Report() *report.Report {
	t := report.Table{Title: "Scenarios",
		Head: []string{"scenario", "kernel = source after", "idle afterwards, of a core"}}
	for _, part := range Parts() {
		if s.Result.Find(part+suffixEqual, 0) != nil {
			t.Rows = append(t.Rows, []string{titles[part], s.MedianText(part + suffixEqual),
				s.MedianText(part + suffixIdle)})
		}
	}

	rows := report.Table{Title: "Nodes", Head: []string{"", "value"}}
	for _, name := range []string{caseNodesMemory, caseChangeCPU, caseChangeDevice,
		caseRemoveAdd, caseRemoveLost, caseSilentCPU, caseSilentLater, caseSilentMemory} {
		if s.Result.Find(name, 0) != nil {
			rows.Rows = append(rows.Rows, []string{s.Labels[name], s.MedianText(name)})
		}
	}
	return &report.Report{Title: "A node in a large cluster",
		Lead: fmt.Sprintf("A complete veild beside a real API server with %d Nodes, VeilNodes and "+
			"Services, and %d endpoints for each Service.", s.Nodes, perService),
		Tables: []report.Table{t, rows},
		Notes: append(s.Notes,
			"The time counts from the last change of a scenario, and includes the reading of the "+
				"kernel and of the API server.",
			fmt.Sprintf("Idle is the CPU time of veild and veil-wg in %v that begin %v after the "+
				"scenario's end.", s.Idle, s.Settle),
			"Of the nodes, only their objects exist. No packet is sent to them.",
		)}
}
