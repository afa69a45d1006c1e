package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestSummarize(t *testing.T) {
	for name, tt := range map[string]struct {
		values []float64
		want   bench.Stat
	}{
		"nothing":           {nil, bench.Stat{}},
		"one":               {[]float64{3}, bench.Stat{Median: 3, Min: 3, Max: 3, N: 1}},
		"odd, out of order": {[]float64{9, 1, 5}, bench.Stat{Median: 5, Min: 1, Max: 9, N: 3}},
		"even":              {[]float64{4, 1, 2, 9}, bench.Stat{Median: 3, Min: 1, Max: 9, N: 4}},
		"one outlier": {[]float64{10, 10, 10, 10, 1000},
			bench.Stat{Median: 10, Min: 10, Max: 1000, N: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.want.Samples = tt.values
			if diff := cmp.Diff(tt.want, bench.Summarize(tt.values)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRatios(t *testing.T) {
	for name, tt := range map[string]struct {
		ours, base []float64
		want       bench.Ratio
		wantErr    string
	}{
		// The machine became twice as fast between the rounds: the ratio did not.
		"drift cancels": {[]float64{95, 190}, []float64{100, 200},
			bench.Ratio{Median: 0.95, Min: 0.95, Max: 0.95}, ""},
		"median of ratios": {[]float64{1, 2, 30}, []float64{1, 1, 10},
			bench.Ratio{Median: 2, Min: 1, Max: 3}, ""},
		"base measured nought": {[]float64{1}, []float64{0}, bench.Ratio{}, "round 1: base is 0"},
		"rounds missing":       {[]float64{1, 2}, []float64{1}, bench.Ratio{}, "2 and 1 rounds"},
		"no rounds":            {nil, nil, bench.Ratio{}, "0 and 0 rounds"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bench.Ratios(tt.ours, tt.base)
			checkErr(t, err, tt.wantErr)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{40, 10, 30, 20, 50}
	for q, want := range map[float64]float64{0: 10, 0.25: 20, 0.5: 30, 0.9: 46, 1: 50} {
		if got := bench.Quantile(values, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if values[0] != 40 {
		t.Error("the caller's values were sorted")
	}
}

func TestUnitFormat(t *testing.T) {
	for want, got := range map[string]string{
		"0 Mbit/s":    bench.Mbps.Format(0),
		"1843 Mbit/s": bench.Mbps.Format(1843.4),
		"91.2 ms":     bench.Millisecond.Format(91.23),
		"0.412 %":     bench.Percent.Format(0.4119),
		"1000":        bench.Count.Format(1000),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestGates(t *testing.T) {
	c := &bench.Case{Name: "x", Unit: bench.MiB, Ours: bench.Stat{Median: 70, Min: 60, Max: 75,
		N: 5}, Ratio: &bench.Ratio{Median: 0.95, Min: 0.9, Max: 1}}

	for name, tt := range map[string]struct {
		gate bench.Gate
		ok   bool
		got  string
	}{
		"ratio at the limit": {bench.AtLeast("g", c, 0.95), true,
			"0.950 (0.900 to 1.000 in 5 rounds)"},
		"ratio under the limit":    {bench.AtLeast("g", c, 0.951), false, "0.950"},
		"ratio over the limit":     {bench.AtMost("g", c, 0.94), false, "0.950"},
		"ratio below the most":     {bench.AtMost("g", c, 1.3), true, "0.950"},
		"value below":              {bench.Below("g", c, 80), true, "70.0 MiB"},
		"value not below":          {bench.Below("g", c, 70), false, "70.0 MiB"},
		"value within":             {bench.Within("g", c, 70), true, "70.0 MiB"},
		"value not within":         {bench.Within("g", c, 69), false, "70.0 MiB"},
		"nothing measured, ratio":  {bench.AtLeast("g", nil, 0), false, "not measured"},
		"nothing measured, value":  {bench.Below("g", nil, 1), false, "not measured"},
		"base absent, no ratio":    {bench.AtLeast("g", &bench.Case{}, 0), false, "not measured"},
		"a number that is wanted":  {bench.Exactly("g", 1, 1, "peer"), true, "1 peer"},
		"a number that is another": {bench.Exactly("g", 2, 1, "peer"), false, "2 peer"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.gate.OK != tt.ok || !strings.HasPrefix(tt.gate.Got, tt.got) {
				t.Errorf("%+v, want ok %v and got %q…", tt.gate, tt.ok, tt.got)
			}
		})
	}
}

func valid() *bench.Result {
	return &bench.Result{
		Schema: bench.Schema, Kernel: "6.1", CPUs: 2, Platform: bench.Namespaces,
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Cases: []bench.Case{{
			Name: "tcp_1", MTU: 1500, Unit: bench.Mbps,
			Ours: bench.Stat{Median: 2, Min: 1, Max: 3, N: 5},
			Base: &bench.Stat{Median: 2, Min: 1, Max: 3, N: 5}, BaseName: "bare",
			Ratio: &bench.Ratio{Median: 1, Min: 1, Max: 1},
		}},
		Gates: []bench.Gate{{Name: "g", Want: "1", Got: "1", OK: true}},
	}
}

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*bench.Result)
		wantErr string
	}{
		"valid":          {func(*bench.Result) {}, ""},
		"another schema": {func(r *bench.Result) { r.Schema = "v2" }, `schema "v2"`},
		"unknown platform": {func(r *bench.Result) { r.Platform = "cloud" },
			`platform "cloud"`},
		"unknown unit": {func(r *bench.Result) { r.Cases[0].Unit = "furlong" },
			`unit "furlong"`},
		"base without ratio": {func(r *bench.Result) { r.Cases[0].Ratio = nil },
			"want all or none"},
		"base without name": {func(r *bench.Result) { r.Cases[0].BaseName = "" },
			"want all or none"},
		"rounds of one side only": {func(r *bench.Result) { r.Cases[0].Base.N = 4 },
			"ours has 5 rounds, base 4"},
		"no rounds": {func(r *bench.Result) { r.Cases[0].Ours.N = 0 }, "n 0"},
		"median above the maximum": {func(r *bench.Result) { r.Cases[0].Ours.Median = 4 },
			"out of order"},
		"not a number": {func(r *bench.Result) { r.Cases[0].Ratio.Max = math.NaN() },
			"NaN"},
		"a case there twice": {func(r *bench.Result) {
			r.Cases = append(r.Cases, r.Cases[0])
		}, "there twice"},
		"a gate without figures": {func(r *bench.Result) { r.Gates[0].Got = "" }, `gate "g"`},
		"more failures than failed": {func(r *bench.Result) {
			r.Tests.Failures = []bench.Failure{{Name: "T", Reason: "r"}}
		}, "1 failures of 0"},
		"a failure without a reason": {func(r *bench.Result) {
			r.Tests = bench.Tests{Failed: 1, Failures: []bench.Failure{{Name: "T"}}}
		}, `failed test "T"`},
		"a skip without a reason": {func(r *bench.Result) {
			r.Tests.Skipped = []bench.Skip{{Name: "T"}}
		}, `skipped test "T"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := valid()
			tt.change(r)
			checkErr(t, r.Validate(), tt.wantErr)
		})
	}
}

func TestWriteThenRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "result.json")
	want := valid()
	errtest.Must(t, want.Write(path))
	got, err := bench.Read(path)
	errtest.Must(t, err)
	want.Tests.Skipped, want.Tests.Failures = []bench.Skip{}, []bench.Failure{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	b := filetest.Read(t, path)
	if !strings.Contains(string(b), `"leaks": null`) {
		t.Errorf("leaks without an oracle are not null:\n%s", b)
	}
}

func TestWriteRefusesWhatIsNotValid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	r := valid()
	r.CPUs = 0
	checkErr(t, r.Write(path), "cpus 0")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(
		[]byte(
			`{"schema":"kubeveil.io/result/v1","kernel":"6.1","cpus":1,"platform":"vm","started":"2026-01-02T03:04:05Z","cases":[{"name":"a","unit":"ms","ours":{"median":1,"min":1,"max":1,"n":1}}]}`))
	f.Add([]byte(`{"cases":[{}],"unknown":1}`))
	f.Add([]byte(`null null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := bench.Parse(b)
		if err != nil {
			return
		}
		if err := r.Write(filepath.Join(t.TempDir(), "r")); err != nil {
			t.Errorf("a parsed result cannot be written: %v", err)
		}
	})
}

func TestRunnerInterleaves(t *testing.T) {
	var order []string
	side := func(name string) bench.Measure {
		return func(context.Context) (bench.Sample, error) {
			order = append(order, name)
			return bench.Sample{Value: float64(len(order)), CPU: 1}, nil
		}
	}
	comps := []bench.Comparison{
		{Name: "a", Unit: bench.Mbps, Ours: side("a ours"), Base: side("a base"), BaseName: "bare"},
		{Name: "b", Unit: bench.Mbps, Ours: side("b ours"), Base: side("b base"), BaseName: "bare"},
	}

	run := func() []string {
		order = nil
		cases, err := (&bench.Runner{Rounds: 8, Seed: 7}).Run(t.Context(), comps)
		errtest.Must(t, err)
		if names := fmt.Sprint(cases[0].Name, " ", cases[1].Name, " ",
			cases[2].Name); names != "a a_cpu b" {
			t.Errorf("cases %s", names)
		}
		if n := cases[0].Ours.N; n != 8 {
			t.Errorf("%d rounds, want 8", n)
		}
		return order
	}

	first := run()
	baseFirst, bFirst := 0, 0
	for i := 0; i < len(first); i += 2 {
		if first[i][0] != first[i+1][0] {
			t.Fatalf("the sides of a case are not measured in sequence: %q", first[i:i+2])
		}
		if strings.HasSuffix(first[i], "base") {
			baseFirst++
		}
		if i%4 == 0 && first[i][0] == 'b' {
			bFirst++
		}
	}

	if baseFirst == 0 || baseFirst == 16 || bFirst == 0 || bFirst == 8 {
		t.Errorf("the order is not random: base first %d of 16, b first %d of 8", baseFirst, bFirst)
	}
	if diff := cmp.Diff(first, run()); diff != "" {
		t.Errorf("one seed led to two orders: %s", diff)
	}
}

func TestGroups(t *testing.T) {
	side := func(values ...float64) bench.Measure {
		return func(context.Context) (bench.Sample, error) {
			v := values[0]
			values = append(values[1:], v)
			return bench.Sample{Value: v, P99: 2 * v}, nil
		}
	}
	g := bench.Group{Name: "rr", MTU: 1500, Unit: bench.Millisecond,
		Sides: []bench.Side{{Name: "ours", Measure: side(4, 8)},
			{Name: "bare", Measure: side(2, 4)}, {Name: "clear", Measure: side(1, 1)}},
		Pairs: []bench.Pair{{Name: "rr", Ours: "ours", Base: "bare", BaseName: "bare WireGuard"},
			{Name: "rr_to_clear", Ours: "ours", Base: "clear"}, {Name: "alone", Ours: "ours"}},
	}

	cases, err := (&bench.Runner{Rounds: 2}).RunGroups(t.Context(), []bench.Group{g})
	errtest.Must(t, err)

	got := map[string]float64{}
	for _, c := range cases {
		got[c.Name+" "+c.BaseName] = c.Ours.Median
		if c.Ratio != nil {
			got[c.Name+" "+c.BaseName] = c.Ratio.Median
		}
	}

	want := map[string]float64{
		"rr bare WireGuard": 2, "rr_p99 bare WireGuard": 2, "rr_to_clear clear": 6,
		"rr_to_clear_p99 clear": 6, "alone ": 6, "alone_p99 ": 12,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTurns(t *testing.T) {
	var order []string
	side := func(name string, values ...float64) bench.Side {
		return bench.Side{Name: name, Measure: func(context.Context) (bench.Sample, error) {
			order = append(order, name)
			v := values[0]
			values = values[1:]
			return bench.Sample{Value: v, CPU: 10 * v,
				Extras: map[string]float64{"_p90": 100 * v}}, nil
		}}
	}

	g := bench.Group{Name: "tcp_1", Unit: bench.Mbps, Turns: 2,
		Extras: []bench.Extra{{Suffix: "_p90", Unit: bench.Millisecond}, {Suffix: "_none"}},
		Sides:  []bench.Side{side("ours", 2, 4, 6, 10), side("bare", 1, 3, 2, 2)},
		Pairs:  []bench.Pair{{Name: "tcp_1", Ours: "ours", Base: "bare"}}}
	cases, err := (&bench.Runner{Rounds: 2}).RunGroups(t.Context(), []bench.Group{g})
	errtest.Must(t, err)
	if n, ratio, cpu := cases[0].Ours.N, *cases[0].Ratio, cases[1].Ours; n != 2 ||
		ratio.Min != 1.5 || ratio.Max != 4 || cpu.Min != 30 || cpu.Max != 80 {
		t.Errorf("%d rounds, ratio %+v, CPU %+v: want means of the turns", n, ratio, cpu)
	}
	if len(cases) != 3 || cases[2].Name != "tcp_1_p90" || cases[2].Unit != bench.Millisecond ||
		cases[2].Ours.Min != 300 || cases[2].Ours.Max != 800 || cases[2].Ratio.Max != 4 {
		t.Errorf("%+v: want means of the extra that was measured", cases[2:])
	}
	for i := 0; i < len(order); i += 2 {
		if order[i] == order[i+1] {
			t.Errorf("a side was measured twice in a turn: %q", order)
		}
	}
}

func TestSidesMeasuredTogether(t *testing.T) {
	values := [][]bench.Sample{{{Value: 2}, {Value: 1}}, {{Value: 6}, {Value: 3}},
		{{Value: 9}, {Value: 3}}, {{Value: 9}}}
	g := bench.Group{Name: "rr", Unit: bench.Millisecond,
		Sides: []bench.Side{{Name: "ours"}, {Name: "bare"}},
		Pairs: []bench.Pair{{Name: "rr", Ours: "ours", Base: "bare"}},
		Together: func(context.Context) ([]bench.Sample, error) {
			v := values[0]
			values = values[1:]
			return v, nil
		}}
	cases, err := (&bench.Runner{Rounds: 3}).RunGroups(t.Context(), []bench.Group{g})
	errtest.Must(t, err)
	if n, ratio := cases[0].Ours.N, *cases[0].Ratio; n != 3 || ratio.Min != 2 || ratio.Max != 3 {
		t.Errorf("%d rounds, ratio %+v: want the ratio of each round", n, ratio)
	}
	_, err = (&bench.Runner{Rounds: 1}).RunGroups(t.Context(), []bench.Group{g})
	checkErr(t, err, "rr at MTU 0, round 1: 1 samples of 2 sides")
}

func TestRunnerEndsOnTheFirstError(t *testing.T) {
	calls := 0
	broken := func(context.Context) (bench.Sample, error) {
		calls++
		return bench.Sample{}, errors.New("no route to host")
	}
	_, err := (&bench.Runner{Rounds: 5}).Run(t.Context(),
		[]bench.Comparison{{Name: "tcp_1", MTU: 9000, Unit: bench.Mbps, Ours: broken}})
	checkErr(t, err, "tcp_1 at MTU 9000, round 1: ours: no route to host")
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
}

func TestRunnerGivesTheRoundsThatWereWhole(t *testing.T) {
	side := func(rounds int) bench.Measure {
		return func(context.Context) (bench.Sample, error) {
			if rounds--; rounds < 0 {
				return bench.Sample{}, errors.New("no route to host")
			}
			return bench.Sample{Value: 6}, nil
		}
	}
	cases, err := (&bench.Runner{Rounds: 5}).Run(t.Context(), []bench.Comparison{
		{Name: "tcp_1", Unit: bench.Mbps, Ours: side(5), Base: side(2), BaseName: "bare"},
	})
	checkErr(t, err, "tcp_1 at MTU 0, round 3: bare: no route to host")
	if len(cases) != 1 || cases[0].Ours.N != 2 || cases[0].Base.N != 2 ||
		cases[0].Ratio.Median != 1 {
		t.Errorf("cases %+v, want one of two rounds", cases)
	}
}

func TestRunnerEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := func(context.Context) (bench.Sample, error) {
		cancel(errors.New("interrupted"))
		return bench.Sample{Value: 1}, nil
	}
	_, err := (&bench.Runner{Rounds: 5}).Run(ctx,
		[]bench.Comparison{{Name: "x", Unit: bench.Mbps, Ours: stop}})
	checkErr(t, err, "interrupted")
}

func checkErr(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want an error with %q", err, want)
	}
}
