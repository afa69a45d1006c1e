package scale

import (
	"os"
	"testing"

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
	o := RunConfig{Choice: suite.Choice{Root: ".", Rounds: 1, Parts: Parts(), Progress: t.Logf},
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
	// Each list has its extras and the ratios of both times; UDP, IPv6 and one
	// service have their extras.
	if want := len(o.Sizes)*(1+len(extras)+2) + 3*(1+len(extras)); len(rep.Result.Cases) != want {
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

func TestGatesOfOtherSizesAreSkipped(t *testing.T) {
	s := &run{RunConfig: RunConfig{Sizes: []int{10, 1000}}}
	for gate, want := range map[string]bool{
		"list_10": false, "list_1000_to_loop, against loop": false, "list_1000_heap": false,
		"list_100": true, "list_100000_to_loop": true, "list_1000000": true,
		"whole_100000_change_99th": true,
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
