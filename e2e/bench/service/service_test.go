package service

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

func TestAddressesAreOfTheLab(t *testing.T) {
	lab := netip.MustParsePrefix("198.18.0.0/15")
	seen := map[netip.Addr]string{}
	note := func(a netip.Addr, what string) {
		t.Helper()
		if !lab.Contains(a) {
			t.Errorf("%s is %s", what, a)
		}
		if other := seen[a]; other != "" {
			t.Errorf("%s is %s and %s", a, what, other)
		}
		seen[a] = what
	}

	for lane := range maxLanes {
		note(clientAddr(lane), fmt.Sprintf("client %d", lane))
		note(nodeAddr(lane), fmt.Sprintf("node %d", lane))
		if !clients.Contains(clientAddr(lane)) || !clientNet(lane).Contains(clientAddr(lane)) {
			t.Errorf("client %d is in no network of clients", lane)
		}
		for e := range endpoints {
			node, far := wire(lane, e)
			note(node, fmt.Sprintf("link %d of node %d", e, lane))
			note(far, fmt.Sprintf("link %d of endpoint %d", lane, e))
		}
	}

	for i := range maxBackends {
		note(backend(i), fmt.Sprintf("backend %d", i))
		if !block(i % endpoints).Contains(backend(i)) {
			t.Errorf("backend %d is not of endpoint %d", i, i%endpoints)
		}
	}

	for i := range measured {
		note(externalAddr(i), fmt.Sprintf("balancer %d", i))
	}

	for i := range maxServices {
		note(virtualAddr(i), fmt.Sprintf("service %d", i))
		if !virtual.Contains(virtualAddr(i)) {
			t.Errorf("service %d is at %s", i, virtualAddr(i))
		}
	}
}

func TestPlanHasAllServicesAndTheMeasuredInTheMiddle(t *testing.T) {
	for _, z := range []size{{4, 3}, {5, 3}, {10, 3}, {1000, 1000}, {maxServices, 3}} {
		plan := z.plan()
		if len(plan) != z.services {
			t.Errorf("%s: %d planned", z, len(plan))
		}
		at := slices.IndexFunc(plan, func(o peer.Object) bool {
			return o.Service.Name.Name == "http"
		})
		if fill := z.services - len(measured); at != fill/2 {
			t.Errorf("%s: the measured begin at %d", z, at)
		}
		if got := plan[at].Slice.Endpoints.Len(); got != z.backends {
			t.Errorf("%s: http has %d endpoints", z, got)
		}
		stream := plan[at+3]
		if got := stream.Slice.Endpoints.Len(); got != 1 || stream.Service.Name.Name != "stream" {
			t.Errorf("%s: %s has %d endpoints, want stream with one", z, stream.Service.Name, got)
		}
	}
}

// TestOursHasThePlanOfTheOthers checks that Kubeveil's table has the services that kube-proxy
// reads.
func TestOursHasThePlanOfTheOthers(t *testing.T) {
	z := size{50, 1000}
	p, err := planner.New("node", laneLimits)
	errtest.Must(t, err)
	fronts := 0
	for _, o := range z.plan() {
		put(p, o)
		// From inside and from outside.
		fronts += len(o.Service.Ports) * (1 + 2*len(o.Service.LoadBalancerIPs))
	}
	got := 0
	for again := true; again; {
		c := p.Plan()
		again, got = c.Again, got+len(c.Frontends.Keys)
	}
	if len(p.Problems()) > 0 || got != fronts {
		t.Errorf("%d frontends, want %d; %v", got, fronts, p.Problems())
	}
}

// TestLateSizes checks which tables are left out after kube-proxy did not write a table in time.
func TestLateSizes(t *testing.T) {
	for name, tt := range map[string]struct {
		late, other size
		want        bool
	}{
		"the same":                         {size{1000, 3}, size{1000, 3}, true},
		"more services":                    {size{1000, 3}, size{10000, 3}, true},
		"fewer services":                   {size{1000, 3}, size{10, 3}, false},
		"fewer services of more endpoints": {size{1000, 3}, size{10, 1000}, false},
		"more services of fewer endpoints": {size{10, 1000}, size{1000, 3}, false},
	} {
		if got := tt.late.within(tt.other); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestParseWrk(t *testing.T) {
	const good = "Running 1s test @ http://198.19.0.1:8080/\n  3 threads and 99 connections\n  " +
		"60000 requests in 1.00s, 7.3MB read\nRequests/sec:  59876.54\nTransfer/sec:      7.3MB\n"
	for name, tt := range map[string]struct {
		out     string
		want    float64
		wantErr string
	}{
		"a rate": {good, 59876.54, ""},
		"ends that are errors": {good + "  Socket errors: connect 0, read 12, write 0, timeout 0\n",
			59876.54, ""},
		"no connection": {good + "  Socket errors: connect 3, read 0, write 0, timeout 0\n",
			0, "connect 3"},
		"answers that failed": {good + "  Non-2xx or 3xx responses: 7\n", 0, "responses: 7"},
		"nothing":             {"unable to connect", 0, "unable to connect"},
		"a rate of nothing":   {"Requests/sec:      0.00\n", 0, "no rate"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseWrk(tt.out)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want an error with %q", err, tt.wantErr)
				}
				return
			}

			if err != nil || got != tt.want {
				t.Errorf("%v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

const sockperfOut = "sockperf: Summary: Round trip is 19.876 usec\nsockperf: Total 49999 " +
	"observations\n---> <MAX> observation = 1234.5\n---> percentile 50.000 =   19.1\n---> <MIN> " +
	"observation =   16.015\n"

func TestParseSockperf(t *testing.T) {
	got, err := parseSockperf(sockperfOut)
	if err != nil || got != (pingPong{19.876, 16.015}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "sockperf: ERROR: connection refused",
		"Summary: Round trip is 1 usec"} {
		if _, err := parseSockperf(bad); err == nil {
			t.Errorf("%q gave no error", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sockperfOut)
	f.Add("Requests/sec:  59876.54\n")
	f.Fuzz(func(t *testing.T, out string) {
		if v, err := parseWrk(out); err == nil && v <= 0 {
			t.Errorf("wrk: %v of %q", v, out)
		}
		if p, err := parseSockperf(out); err == nil && (p.mean <= 0 || p.least <= 0) {
			t.Errorf("sockperf: %v of %q", p, out)
		}
	})
}

func TestSound(t *testing.T) {
	for name, tt := range map[string]struct {
		r       openloop.Result
		wantErr string
	}{
		"all done":         {openloop.Result{Done: 1000}, ""},
		"a few unfinished": {openloop.Result{Done: 1000, Unfinished: 10}, ""},
		"many unfinished":  {openloop.Result{Done: 1000, Unfinished: 11}, "did not end"},
		"one failed":       {openloop.Result{Done: 1000, Failed: 1, Error: "refused"}, "refused"},
		"nothing done":     {openloop.Result{}, "did not end"},
	} {
		err := sound(tt.r)
		if (err == nil) != (tt.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %v, want %q", name, err, tt.wantErr)
		}
	}
}

func TestBalanced(t *testing.T) {
	for name, tt := range map[string]struct {
		seen map[string]int
		ok   bool
	}{
		"all three": {map[string]int{"endpoint-1": 20, "endpoint-2": 15, "endpoint-3": 25},
			true},
		"one is missing": {map[string]int{"endpoint-1": 30, "endpoint-2": 30}, false},
		"one has too few": {map[string]int{"endpoint-1": 1, "endpoint-2": 30, "endpoint-3": 29},
			false},
		"somebody else is": {map[string]int{"endpoint-1": 30, "endpoint-2": 29, "stranger": 1},
			false},
	} {
		if err := balanced(tt.seen); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoss(t *testing.T) {
	for _, tt := range []struct{ ratio, twice, want float64 }{{0.9, 1, 10}, {0.9, 0.85, 0},
		{0.9, 1.2, 0}, {1.1, 1, 0}, {0.97, 0.98, 3}} {
		if got := loss(tt.ratio, tt.twice); got < tt.want-1e-9 || got > tt.want+1e-9 {
			t.Errorf("ratio %v with a control of %v: loss %v, want %v", tt.ratio, tt.twice,
				got, tt.want)
		}
	}
}

func TestOptions(t *testing.T) {
	good := RunConfig{Choice: suite.Choice{Rounds: 1, Parts: Parts()}, Turns: 1, Slower: 1,
		Sample: time.Second, Sizes: Sizes}
	errtest.Check(t, good.Check())

	if e := good.Estimate(); e < time.Minute || e > time.Hour {
		t.Errorf("estimate %v", e)
	}

	for want, spoil := range map[string]func(*RunConfig){
		"0 rounds":       func(o *RunConfig) { o.Rounds = 0 },
		"of 0 turns":     func(o *RunConfig) { o.Turns = 0 },
		"divided by 0":   func(o *RunConfig) { o.Slower = 0 },
		"whole seconds":  func(o *RunConfig) { o.Sample = 1500 * time.Millisecond },
		`part "other"`:   func(o *RunConfig) { o.Parts = []string{"other"} },
		"sizes []":       func(o *RunConfig) { o.Sizes = nil },
		"sizes [3]":      func(o *RunConfig) { o.Sizes = []int{3} },
		"sizes [20 10]":  func(o *RunConfig) { o.Sizes = []int{20, 10} },
		"sizes [10 10]":  func(o *RunConfig) { o.Sizes = []int{10, 10} },
		"sizes [100000]": func(o *RunConfig) { o.Sizes = []int{100000} },
	} {
		o := good
		spoil(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestGatesAreOfCasesThatAreMeasured checks that the parts measure each case that gates.json names
// for this suite.
func TestGatesAreOfCasesThatAreMeasured(t *testing.T) {
	o := RunConfig{Sizes: Sizes}
	known := map[string]bool{caseRead + toNFTables: true, caseEntry: true, caseFill: true,
		caseChange + suffixP99 + toNFTables: true}
	for _, r := range []reach{pod, outside} {
		for _, q := range quantities {
			for _, p := range pairs(fmt.Sprintf("%s_%s", r, q.name),
				sidesOf(r)) {
				known[p.Name], known[p.Name+"_cpu"] = true, q.name == qStream
				for _, e := range q.extras {
					known[p.Name+e.suffix] = true
				}
			}
		}
		for _, n := range o.Sizes[1:] {
			known[fmt.Sprintf("%s_%s_%s_%d_services%s", partScale, r, qCRR, n, suffixLoss)] = true
		}
	}

	result := &bench.Result{Platform: bench.Namespaces}
	for name, is := range known {
		if !is {
			continue
		}
		ratio, base := bench.Ratio{Median: 1, Min: 1, Max: 1},
			bench.Stat{Median: 1, Min: 1, Max: 1, N: 1}
		result.Cases = append(result.Cases, bench.Case{Name: name, Unit: bench.PerSecond,
			Ours: base, Base: &base, BaseName: "base", Ratio: &ratio})
	}

	gates, err := bench.Judge(result, Suite)
	if err != nil || len(gates) < 28 {
		t.Fatalf("%d gates, %v", len(gates), err)
	}

	for _, g := range gates {
		if !g.OK {
			t.Errorf("%s: want %s, got %s", g.Name, g.Want, g.Got)
		}
	}
}

func TestPairs(t *testing.T) {
	names := func(sides ...string) string {
		var out []string
		for _, p := range pairs("g", sides) {
			out = append(out, p.Name)
		}
		return strings.Join(out, " ")
	}
	if got, want := names(sideOurs, sideDirect, sideNFTables),
		"g_to_direct g_to_nftables g_nftables_to_direct"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	if got, want := names(sideOurs, sideRouted, sideNFTables),
		"g_to_routed g_to_nftables g_routed_to_direct g_nftables_to_direct "+
			"g_routed_to_nftables"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := names(sideDirect, sideHAProxy), "g_haproxy_to_direct"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// Each case of sizes has a unique name, and its sides exist.
	o := RunConfig{Sizes: Sizes}
	sides := map[string]bool{}
	for _, c := range o.scaleSides(pod) {
		sides[c.String()] = true
	}

	seen := map[string]bool{}
	for _, p := range o.scalePairs("g", o.scaleSides(pod)) {
		if seen[p.Name] || !sides[p.Ours] || !sides[p.Base] {
			t.Errorf("%+v exists twice, or one of its sides does not exist", p)
		}
		seen[p.Name] = true
	}
}

func TestChildSaysWhatItDoesNotKnow(t *testing.T) {
	if err := child(t.Context(), []string{"other", ""}, nil); err == nil {
		t.Error("no error")
	}
	if err := child(t.Context(), []string{"load", "{"}, nil); err == nil {
		t.Error("no error for half an object")
	}
	b, err := json.Marshal(openloop.Load{})
	errtest.Must(t, err)
	if err := child(t.Context(), []string{"load", string(b)}, nil); err == nil {
		t.Error("no error for a load of nothing")
	}
}
