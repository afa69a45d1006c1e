package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	gort "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/largeobject"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// The leak check reads the process's mounts from the main thread, so no test may run on that
// thread.
func init() { gort.LockOSThread() }

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// small returns scales that are small enough for a test. Seven rules of each policy refer to the
// tiers of all pods. The pods of 60 nodes take more memory than the noise of the heap's size on a
// busy machine.
func small() scales {
	return scales{
		large:   world.Scale{Nodes: 4, Pods: 20, Policies: 40, Rules: 7},
		node:    world.Scale{Nodes: 60, Pods: 20, Policies: 20, Rules: 7},
		changes: 10, edits: 5, connections: 300, opened: 300,
		bytes: 50e6, short: 400, turns: 2,
		swollen: 2, readPods: 10,
		lines: 40, selectors: 64, adds: 3, idle: 100 * time.Millisecond,
	}
}

// choice returns the choice of all parts except read, which needs the built programs.
func choice(t *testing.T) suite.Choice {
	parts := slices.DeleteFunc(Parts(), func(p string) bool { return p == "read" })
	return suite.Choice{Root: ".", Rounds: 1, Parts: parts, Progress: t.Logf}
}

// A small run measures each case that has a gate, labels each case, and leaves nothing behind.
func TestRunMeasuresEachCaseThatHasAGate(t *testing.T) {
	nettest.NeedLong(t, "it tries each measurement; an interrupted run tries some")
	nettest.NeedBPF(t)
	rep, err := runAt(t.Context(), choice(t), small())
	errtest.Must(t, err)
	errtest.Check(t, rep.Result.Validate())

	gates, err := bench.Judge(rep.Result, Suite)
	if err != nil || len(gates) == 0 {
		t.Fatalf("%d gates, %v", len(gates), err)
	}
	for _, g := range rep.Result.Gates {
		if g.Got == "not measured" || strings.HasPrefix(g.Name, "part ") {
			t.Errorf("%s: %s", g.Name, g.Got)
		}
	}
	for _, c := range rep.Result.Cases {
		none := c.Ours.Median <= 0 && !strings.HasSuffix(c.Name, suffixIdle) // An idle process takes none.
		if rep.Labels[c.Name] == "" || none {
			t.Errorf("%s is %q: %+v", c.Name, rep.Labels[c.Name], c.Ours)
		}
	}
	for _, want := range []string{"Lane 10x10 has 100 rules", "Lane 200 has 201 rules"} {
		if !slices.ContainsFunc(rep.Notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("no note begins with %q: %q", want, rep.Notes)
		}
	}
	if c := rep.Result.Find(caseAddBare, 0); c == nil || c.Ours.Median != 2 {
		t.Errorf("without policies ADD wrote %+v, want an element of each family", c)
	}
	nothingLeft(t)
}

// Each case of part read has a label and a gate. The test does not run the part, which needs a lab.
func TestCasesOfPartReadHaveNamesAndGates(t *testing.T) {
	gates, err := bench.Judge(&bench.Result{Platform: bench.Namespaces}, Suite)
	errtest.Must(t, err)
	judged := map[string]bool{}
	for _, g := range gates {
		judged[g.Name] = true
	}
	for name := range ofGates.labels() {
		reported := largeobject.IsReported(name)
		if strings.HasPrefix(name, "read_") && !judged[name] && !reported {
			t.Errorf("%s has no gate", name)
		}
		delete(judged, name)
	}
	for name := range judged {
		if strings.HasPrefix(name, "read_") {
			t.Errorf("gate %s has no case", name)
		}
	}
}

// An interrupted run returns a report of what it has measured, and leaves nothing behind.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	nettest.NeedBPF(t)
	ended := errors.New("interrupted by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := choice(t)
	o.Progress = func(format string, _ ...any) {
		if strings.HasPrefix(format, "round") && strings.Contains(format, "weigh") {
			cancel(ended)
		}
	}

	rep, err := runAt(ctx, o, small())
	if !errors.Is(err, ended) {
		t.Errorf("error %v, want the error of the context", err)
	}
	if rep == nil || rep.Result.Find(casePlan, 0) == nil || rep.Result.Find(casePod, 0) != nil {
		t.Errorf("report %+v: want part size and not part change", rep)
	}
	nothingLeft(t)
}

// An interrupted run returns the complete rounds of connections. Their gates are missed, regardless
// of the values.
func TestInterruptedConnectionsKeepTheirRounds(t *testing.T) {
	nettest.NeedBPF(t)
	ended := errors.New("interrupted by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := choice(t)
	o.Parts, o.Rounds = []string{"connections"}, 2
	done := 0
	o.Progress = func(format string, args ...any) {
		t.Logf(format, args...)
		if strings.HasPrefix(format, "round") {
			if done++; done == 3 { // after established connections of the second round
				cancel(ended)
			}
		}
	}

	rep, err := runAt(ctx, o, small())
	if !errors.Is(err, ended) {
		t.Errorf("error %v, want the error of the context", err)
	}
	for _, q := range []string{"established", "new"} {
		rounds, incomplete := 2, q == "new"
		if incomplete {
			rounds = 1
		}
		for _, lane := range []string{"control", "10x10", "200", "queue"} {
			name := "connections_" + q + "_" + lane + "_cpu"
			c := rep.Result.Find(name, 0)
			if c == nil || c.Ours.N != rounds || c.Incomplete != incomplete ||
				strings.Contains(rep.Labels[name], "incomplete: 1 of 2 rounds") != incomplete {
				t.Errorf("%s: %+v, %q, want %d rounds", name, c, rep.Labels[name], rounds)
			}
		}
	}
	judged := 0
	for _, g := range rep.Result.Gates {
		if strings.HasPrefix(g.Name, "connections_new_") {
			judged++
			if g.OK || g.NotJudged || !strings.Contains(g.Got, "incomplete: 1 rounds") {
				t.Errorf("gate of an incomplete case: %+v", g)
			}
		}
	}
	if judged == 0 {
		t.Errorf("no gate of new connections among %+v", rep.Result.Gates)
	}
	errtest.Check(t, rep.Result.Validate())
	nothingLeft(t)
}

// nothingLeft checks that no files are left. The leak check of TestMain finds namespaces, links and
// descriptors.
func nothingLeft(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(memory, folderPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A part that cannot be measured becomes a missed gate, and later parts still run.
func TestPartThatCannotBeMeasuredIsAMissedGate(t *testing.T) {
	nettest.NeedBPF(t)
	o := choice(t)
	o.Parts = []string{"revoke", "add"}
	sizes := small()
	sizes.connections = 1 << 40
	rep, err := runAt(t.Context(), o, sizes)
	errtest.Must(t, err)
	if len(rep.Result.Gates) == 0 || rep.Result.Gates[0].Name != "part revoke" ||
		rep.Result.Gates[0].OK {
		t.Errorf("gates %+v, want a missed one for the part", rep.Result.Gates)
	}
	if rep.Result.Find(caseAddMore, 0) == nil {
		t.Error("part add was not run")
	}
}

func TestChoicesThatAreWrong(t *testing.T) {
	for name, o := range map[string]suite.Choice{
		"no round":     {Parts: Parts()},
		"no part":      {Rounds: 1},
		"another part": {Rounds: 1, Parts: []string{"size", "nonsense"}},
	} {
		if err := Check(o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The plan at the scale of the gates has all pods and each rule once.
func TestClusterIsAsLargeAsTheGatesSay(t *testing.T) {
	c := world.Cluster{Scale: ofGates.large}
	if pods, rules := c.Nodes*c.Pods, c.Policies*c.Rules; pods != 10000 || c.Policies != 1000 ||
		rules != 100000 {
		t.Fatalf("%d pods, %d policies, %d rules", pods, c.Policies, rules)
	}
	if z := ofGates.node; z.Policies*z.Rules != 10000 || ofGates.connections != 100000 {
		t.Errorf("node %+v, %d connections", z, ofGates.connections)
	}

	// The pods of three nodes are enough, because rules do not depend on the pods of other nodes.
	p := planner.New(world.Here)
	c.Put(p, 3)
	plan := p.Plan()
	errtest.Check(t, check(c, plan))
	if len(plan.Problems) > 0 || len(plan.Groups) != c.Pods {
		t.Errorf("%d groups, problems %v", len(plan.Groups), plan.Problems)
	}
}

// The plan of the cluster of the gates can be written into one namespace, adopted without a change,
// and changed when pods change.
func TestLargestClusterIsInOneNamespace(t *testing.T) {
	nettest.NeedRoot(t)
	o := choice(t)
	s := &run{Choice: o, scales: small()}
	s.scales.large, s.scales.changes = ofGates.large, 3
	v := suite.Values{}
	errtest.Must(t, s.sizeRound(t.Context(), v))
	t.Logf("plan %.0f ms, kernel %.0f ms, adopt %.0f ms, one pod %.2f ms", v.Last(casePlan),
		v.Last(caseKernel), v.Last(caseAdopt), v.Last(caseDirect))
}
