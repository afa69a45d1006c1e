package site

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func sampleOf(v, cpu float64) bench.Sample {
	return bench.Sample{Value: v, P99: 2 * v, Extras: map[string]float64{suffixCPU: cpu}}
}

// The best pair has the better of both pairs, for each quantity. What a side adds is above 0 even
// where noise makes it less.
func TestDerivedSides(t *testing.T) {
	got := map[string]bench.Sample{laneClear: sampleOf(100, 10), laneEngine: sampleOf(90, 15),
		laneHAProxy: sampleOf(220, 30), laneGo: sampleOf(200, 40)}
	for side, s := range got {
		got[side+again] = s
	}
	derive(got, bench.Microsecond)
	for side, want := range map[string]bench.Sample{sidePair: sampleOf(200, 30),
		sidePairAdded: sampleOf(100, 20)} {
		for _, s := range []bench.Sample{got[side], got[side+again]} {
			if s.Value != want.Value || s.P99 != want.P99 ||
				s.Extras[suffixCPU] != want.Extras[suffixCPU] {
				t.Errorf("%s: %+v, want %+v", side, s, want)
			}
		}
	}
	if s := got[sideEngineAdded]; s.Value != least || s.Extras[suffixCPU] != 5 {
		t.Errorf("added %+v", s)
	}

	derive(got, bench.PerSecond)
	if s := got[sidePair]; s.Value != 220 {
		t.Errorf("the best pair makes %v connections a second, want 220", s.Value)
	}
}

func options() RunConfig {
	return RunConfig{Choice: suite.Choice{Rounds: 5, Parts: Parts()}, Sample: 3 * time.Second,
		Rates: Rates, Slow: Slow, Connections: Connections, Held: Held}
}

// All gates of the suite judge cases that a run with the default options has. Their controls are
// such cases too. With fewer rates, the others are left out.
func TestGatesHaveTheirCases(t *testing.T) {
	r := &run{RunConfig: options(), Run: &suite.Run{Result: &bench.Result{
		Platform: bench.Namespaces}, Labels: map[string]string{}}}
	for _, l := range r.loads() {
		r.fill(t, r.compared(partRequests+"_"+l.name(), bench.Microsecond, true, nil))
	}
	r.fill(t, r.compared(groupNew, bench.PerSecond, false, nil))
	r.fill(t, r.compared(groupFixed, bench.Microsecond, true, nil))
	for _, part := range []string{partH2load, partPgbench} {
		r.fill(t, r.compared(toolGroup(part), bench.Microsecond, true, nil))
	}
	for _, l := range laneNames[1:] {
		r.Add(partMemory+"_"+l, "label", bench.MiB, 0)
	}
	gates, err := bench.Judge(r.Result, Suite)
	errtest.Must(t, err)
	for _, g := range gates {
		if strings.Contains(g.Got, "not measured") {
			t.Errorf("%s: %s", g.Name, g.Got)
		}
		if r.Skips(g.Name) {
			t.Errorf("%s is skipped", g.Name)
		}
	}

	for _, c := range r.Result.Cases {
		if r.Labels[c.Name] == "" {
			t.Errorf("%s has no label", c.Name)
		}
	}
	tables := r.Report().Tables
	if len(tables) != 3 || len(tables[0].Rows) != len(r.loads())+3 {
		t.Errorf("%+v", tables)
	}
	for _, table := range tables {
		for _, row := range table.Rows {
			if len(row) != len(table.Head) || slices.Contains(row, "–") {
				t.Errorf("%s: row %q", table.Title, row)
			}
		}
	}

	r.Rates, r.Slow, r.Connections = []int{1000}, 0, []int{100}
	for gate, want := range map[string]bool{"requests_1000_100_added": false,
		"requests_1000_500_added": true, "requests_200_100_added": true,
		"connections_new_engine": false} {
		if got := r.Skips(gate); got != want {
			t.Errorf("%s is skipped: %t", gate, got)
		}
	}
}

// fill adds the cases of a group to the result, with one round.
func (s *run) fill(t *testing.T, g bench.Group) {
	t.Helper()
	for _, p := range g.Pairs {
		for _, suffix := range []string{"", "_p99", suffixCPU} {
			if g.Unit == bench.PerSecond && suffix != "" {
				continue
			}
			c, err := bench.NewCase(p.Name+suffix, 0, g.Unit, []float64{2}, []float64{2}, p.BaseName)
			errtest.Must(t, err)
			s.Result.Cases = append(s.Result.Cases, c)
		}
	}
}

func TestOptions(t *testing.T) {
	errtest.Check(t, options().Check())
	if e := options().Estimate(); e < 10*time.Minute || e > time.Hour {
		t.Errorf("estimate %v", e)
	}
	for want, spoil := range map[string]func(*RunConfig){
		"samples of 1ns": func(o *RunConfig) { o.Sample = 1 },
		"rates []":       func(o *RunConfig) { o.Rates = nil },
		"rates [5 5]":    func(o *RunConfig) { o.Rates = []int{5, 5} },
		fmt.Sprintf("[%d] connections", mostConnections+1): func(o *RunConfig) {
			o.Connections = []int{mostConnections + 1}
		},
		"2000 held":         func(o *RunConfig) { o.Held = 2000 },
		"slow rate is 1000": func(o *RunConfig) { o.Slow = 1000 },
		"0 rounds":          func(o *RunConfig) { o.Rounds = 0 },
		`part "other"`:      func(o *RunConfig) { o.Parts = []string{"other"} },
	} {
		o := options()
		spoil(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestLogsOfTools(t *testing.T) {
	for name, c := range map[string]struct {
		parse     func(io.Reader) ([]time.Duration, error)
		log, want string
	}{
		"h2load":            {parseH2load, "1700000000000000\t200\t300\n1700000000000009\t200\t5\n", ""},
		"h2load, failed":    {parseH2load, "1700000000000000\t-1\t300\n", "status -1"},
		"pgbench":           {parsePgbench, "0 0 300 0 1700000000 9 120\n1 0 5 0 1700000000 9 1\n", ""},
		"pgbench, skipped":  {parsePgbench, "0 0 skipped 0 1700000000 9 120\n", "invalid syntax"},
		"without operation": {parsePgbench, "", "no operation"},
		"cut off":           {parseH2load, "1700000000000000\t200", "3 columns"},
	} {
		times, err := c.parse(strings.NewReader(c.log))
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want %q", name, err, c.want)
			}
			continue
		}
		want := []time.Duration{300 * time.Microsecond, 5 * time.Microsecond}
		if err != nil || !slices.Equal(times, want) {
			t.Errorf("%s: %v, %v, want %v", name, times, err, want)
		}
	}
}
