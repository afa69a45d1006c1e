package service

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// RunConfig chooses the measurements of a run. The zero value is not valid.
type RunConfig struct {
	suite.Choice
	// Turns is the number of measurements of each side per round. Their mean is the sample.
	Turns int
	// Slower divides the rates of open loops, for machines that cannot reach the default rates.
	Slower int
	// Sample is the duration of each measurement in whole seconds.
	Sample time.Duration
	// Sizes are numbers of services in a table, ascending. Each size is compared with the first.
	Sizes []int
	// HAProxy and KubeProxy are the paths of these programs.
	HAProxy, KubeProxy string

	// only selects quantities of parts pod and outside by name, and sides selects their sides.
	// Empty selects all.
	only, sides []string
}

// Sizes are the default numbers of services in a table.
var Sizes = []int{10, 1000, 10000, 30000}

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
	switch {
	case o.Rounds < 1 || o.Turns < 1:
		return fmt.Errorf("%d rounds of %d turns: want at least one", o.Rounds, o.Turns)
	case o.Slower < 1 || o.Slower > rrRate:
		return fmt.Errorf("rates divided by %d: want 1 to %d", o.Slower, rrRate)
	case o.Sample < time.Second || o.Sample%time.Second != 0:
		return fmt.Errorf("samples of %v: want whole seconds", o.Sample)
	case len(o.Sizes) == 0 || !slices.IsSorted(o.Sizes) || o.Sizes[0] < len(measured) ||
		o.Sizes[len(o.Sizes)-1] > maxServices ||
		len(slices.Compact(slices.Clone(o.Sizes))) != len(o.Sizes):
		return fmt.Errorf("sizes %v: want different numbers from %d to %d, ascending", o.Sizes,
			len(measured), maxServices)
	}
	return benchmark.Check(o.Choice)
}

// overhead is the time of a measurement besides its sample.
const overhead = 500 * time.Millisecond

// Estimate returns the approximate duration of a run.
func (o RunConfig) Estimate() time.Duration {
	n := 0
	set := 10 * time.Second
	for _, p := range o.Parts {
		switch p {
		case partPod, partOutside:
			r := map[string]reach{partPod: pod, partOutside: outside}[p]
			n += len(quantities) * len(sidesOf(r)) * o.Turns
		case partScale:
			set += time.Minute
			for _, r := range reaches() {
				n += len(scaled) * len(o.scaleSides(r)) * o.Turns
			}
		case partProgramming:
			set += time.Duration(min(fillRounds, o.Rounds)) * 20 * time.Second
		case partCost:
			n += len(reaches()) * 2
		}
	}
	return set + time.Duration(n*o.Rounds)*(o.Sample+overhead)
}
