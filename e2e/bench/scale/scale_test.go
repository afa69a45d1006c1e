package scale

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// A small run measures both sides, labels each case, and leaves nothing behind.
func TestRunMeasuresBothSides(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	o := RunConfig{Choice: suite.Choice{Root: ".", Rounds: 1,
		Parts: []string{partList, partUDP, partIPv6, partWhole}, Progress: t.Logf},
		Sizes: []int{20, 1050}}
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}

	if err := rep.Result.Validate(); err != nil {
		t.Error(err)
	}
	for _, g := range rep.Result.Gates {
		t.Errorf("gate %s: %s", g.Name, g.Got)
	}
	// Each list has its extras of a feed and the ratios of both times; UDP, IPv6 and one
	// service have their extras. A storm needs two services.
	const all, storm = 1 + feedExtras, 2
	if want := len(o.Sizes)*(all+2) + 3*all + 3*storm; len(rep.Result.Cases) != want {
		t.Errorf("%d cases, want %d", len(rep.Result.Cases), want)
	}
	for _, c := range rep.Result.Cases {
		if rep.Labels[c.Name] == "" || c.Ours.Median <= 0 {
			t.Errorf("%s is %q: %+v", c.Name, rep.Labels[c.Name], c.Ours)
		}
	}
	if left := own.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// feedExtras is the number of further quantities of a list from a feed.
const feedExtras = 8

// A small run with a real API server measures both sides of each part, and ends the API server.
func TestRunMeasuresARealAPIServer(t *testing.T) {
	nettest.NeedLong(t, "it only tries measurements, and needs an etcd that only benchmarks use")
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	root, err := buildtree.Root()
	errtest.Must(t, err)
	if err := buildtree.NeedKubernetes(root); err != nil {
		nettest.Skip(t, nettest.NoProgram, err.Error())
	}
	o := RunConfig{Choice: suite.Choice{Root: ".", Rounds: 2, Progress: t.Logf,
		Parts: []string{partServer, partWrite}}, Sizes: []int{5, 1050}}
	rep, err := Run(t.Context(), o)
	errtest.Must(t, err)
	errtest.Check(t, rep.Result.Validate())
	for _, g := range rep.Result.Gates {
		t.Errorf("gate %s: %s", g.Name, g.Got)
	}

	for _, name := range []string{"server_1050_to_drop", "write_5_to_alone", "write_1050_to_alone"} {
		c := rep.Result.Find(name, 0)
		if c == nil || c.Ours.N != 2 || c.Ratio == nil || rep.Labels[name] == "" {
			t.Errorf("%s is %q: %+v", name, rep.Labels[name], c)
		}
	}
	for _, row := range rep.Tables[1].Rows {
		if len(row) != len(rep.Tables[1].Head) {
			t.Errorf("row %q", row)
		}
	}
	if left := own.Left(); len(left) > 0 || len(rep.Tables[1].Rows) != 2 {
		t.Errorf("left: %v; rows: %v", left, rep.Tables[1].Rows)
	}
}

func TestGatesOfOtherSizesAreSkipped(t *testing.T) {
	s := &run{RunConfig: RunConfig{Sizes: []int{10, 1000}}}
	for gate, want := range map[string]bool{
		"list_10": false, "list_1000_to_loop, against loop": false, "list_1000_heap": false,
		"list_100": true, "list_100000_to_loop": true, "list_1000000": true,
		"list_1000_amid_99th": false, "list_100_settled": true,
		"whole_100000_change_99th": true, "whole_1000_change_99th": false,
		"write_1000, best round": false, "write_100000, best round": true,
		"server_1000_to_drop": false, "server_1000000_to_drop, against drop": true,
	} {
		if got := s.Skips(gate); got != want {
			t.Errorf("gate %s is skipped: %t, want %t", gate, got, want)
		}
	}
}

func TestWrongSizesAreRefused(t *testing.T) {
	for _, sizes := range [][]int{nil, {0}, {10, maxSize + 1}} {
		o := RunConfig{Choice: suite.Choice{Rounds: 1, Parts: Parts()}, Sizes: sizes}
		if o.Check() == nil {
			t.Errorf("sizes %v are accepted", sizes)
		}
	}
}
