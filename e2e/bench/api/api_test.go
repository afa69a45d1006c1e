package api

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/testbed"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// options returns the options of a short run, at rates that every machine reaches.
func options(t *testing.T) RunConfig {
	t.Helper()
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	return RunConfig{Choice: suite.Choice{Rounds: 1, Seed: 1, Parts: latencies, Root: ".",
		Progress: t.Logf}, Sample: 200 * time.Millisecond, Faults: 1, Probers: 1,
		Steady: time.Second, Rates: []int{500}, HAProxy: nettest.NeedProgram(t, "haproxy")}
}

// A short run measures each side, labels each case, counts each request once, and leaves nothing
// behind.
func TestRunMeasuresEachSide(t *testing.T) {
	nettest.NeedLong(t, "it tries each measurement; an interrupted run tries one part")
	rep, err := Run(t.Context(), options(t))
	errtest.Must(t, err)
	errtest.Check(t, rep.Result.Validate())

	for _, part := range latencies {
		for _, side := range sidesOf(part) {
			for _, suffix := range []string{"", suffixP99, suffixP90, suffixMean, suffixCPU} {
				name := fmt.Sprintf("%s_500_%s%s", part, side.name, suffix)
				c := rep.Result.Find(name, 0)
				if side.name != sideDirect && (c == nil || c.Ours.Median <= 0 || c.Base == nil) {
					t.Errorf("%s: %+v", name, c)
				}
			}
			name := fmt.Sprintf("%s_500_%s%s", part, side.name, suffixMore)
			if c := rep.Result.Find(name, 0); c == nil || c.Ours.Median != 0 {
				t.Errorf("%s: %+v, want 0", name, c)
			}
		}
	}
	for _, c := range rep.Result.Cases {
		if rep.Labels[c.Name] == "" {
			t.Errorf("%s has no label", c.Name)
		}
	}

	for _, g := range rep.Result.Gates {
		if strings.Contains(g.Got, "not measured") || strings.HasPrefix(g.Name, "part ") {
			t.Errorf("%s: %s", g.Name, g.Got)
		}
	}
	for _, table := range rep.Tables {
		for _, row := range table.Rows {
			if len(row) != len(table.Head) || slices.Contains(row, "–") {
				t.Errorf("%s: row %q", table.Title, row)
			}
		}
	}
	nothingLeft(t)
}

// An interrupted run returns a report of what it has measured, and leaves nothing behind.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	o := options(t)
	ctx, cancel := context.WithCancel(t.Context())
	o.Rounds, o.Parts = 99, []string{"pod"}
	o.Progress = func(format string, _ ...any) {
		if strings.HasPrefix(format, "round") {
			cancel()
		}
	}
	rep, err := Run(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Fatalf("error %v, want the error of the context", err)
	}
	if c := rep.Result.Find("pod_500_ours", 0); c == nil || c.Ours.N != 1 {
		t.Errorf("%+v, want one round", c)
	}
	nothingLeft(t)
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if left := testbed.Own.Left(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An empty result is judged by all limits of issue 35, at all rates.
func TestEachGateIsThere(t *testing.T) {
	gates, err := bench.Judge(&bench.Result{Platform: bench.Namespaces}, Suite)
	errtest.Must(t, err)
	var got []string
	for _, g := range gates {
		got = append(got, g.Name)
	}

	var want []string
	for _, of := range [][2]string{{partPod, sideOurs}, {partHost, sideService},
		{partHost, sideKubelet}, {partPod6, sideOurs}, {partHost6, sideService},
		{partHost6, sideKubelet}} {
		part, side := of[0], of[1]
		for _, rate := range (RunConfig{Rates: Rates}).ratesOf(part) {
			for _, suffix := range []string{"", suffixP99, suffixCPU, suffixMore} {
				want = append(want, fmt.Sprintf("%s_%d_%s%s", part, rate, side, suffix))
			}
		}
	}
	for _, part := range []string{partFailure, partFailure6} {
		for _, f := range faults {
			for _, k := range client.Kinds {
				if f.name == "power" || f.name == "blackhole" {
					want = append(want, caseFailure(part, f, k.Name))
				}
				want = append(want, caseFailure(part, f, k.Name)+suffixWorst)
			}
			if f.name != "back" {
				name := caseFailure(part, f, client.KindWatch)
				want = append(want, name+suffixWorst, name+suffixMissed)
			}
		}
	}
	for _, t := range troubles {
		want = append(want, caseWell(t))
	}
	want = append(want, caseHang+suffixWorst, caseSpread)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("gates %q, want %q", got, want)
	}
}

func TestOptions(t *testing.T) {
	good := RunConfig{Choice: suite.Choice{Rounds: 7, Parts: Parts()}, Sample: time.Second,
		Rates: Rates, Faults: 10, Settle: 10 * time.Minute, Probers: 10_000, Steady: time.Minute}
	errtest.Check(t, good.Check())
	if e := good.Estimate(); e < 40*time.Minute || e > 80*time.Minute {
		t.Errorf("estimate %v", e)
	}

	for want, spoil := range map[string]func(*RunConfig){
		"0 faults":      func(o *RunConfig) { o.Faults = 0 },
		"to settle":     func(o *RunConfig) { o.Settle = -1 },
		"0 probers":     func(o *RunConfig) { o.Probers = 0 },
		"probers for":   func(o *RunConfig) { o.Steady = 1 },
		"0 rounds":      func(o *RunConfig) { o.Rounds = 0 },
		"samples of 1s": func(o *RunConfig) { o.Sample = 1 },
		"each once":     func(o *RunConfig) { o.Rates = []int{500, 500} },
		"some from 1":   func(o *RunConfig) { o.Rates = nil },
		"from 1 to":     func(o *RunConfig) { o.Rates = []int{most + 1} },
		`part "other"`:  func(o *RunConfig) { o.Parts = []string{"other"} },
	} {
		o := good
		spoil(&o)
		if want == "samples of 1s" {
			want = "samples of 1ns"
		}
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
