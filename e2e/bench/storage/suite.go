package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// benchmark has the parts in the order in which they run. Whole is set because the names of cases
// do not begin with the name of a part.
var benchmark = suite.Suite[*run]{Name: Suite, Whole: true, Elsewhere: true,
	Parts: []suite.Part[*run]{
		{Name: "stage", Run: (*run).stages},
		{Name: "load", Run: (*run).loads},
	}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	machine *disk.Machine
	disks   []*sideDisk
}

// Run starts a virtual machine, measures in it, ends it, and returns the report. The result is
// judged by the gates of the machine's platform. If a part fails or ctx ends, Run returns an error
// beside the report, which lists the part as skipped. Run needs root.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r, disks: newDisks(o)}
		s.Labels = labels()
		return s, s.begin(ctx)
	})
}

// begin starts the machine, and starts the result with the machine's properties.
func (s *run) begin(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	disks := []disk.Disk{stageDisk(s.RunConfig)}
	for _, d := range s.disks {
		disks = append(disks, d.Disk)
	}
	var err error
	if s.machine, err = disk.Start(ctx, disk.MachineConfig{Disks: disks, Dir: s.Dir,
		Log: s.Log}); err != nil {
		return err
	}

	if err := s.On(s.machine.Platform()); err != nil {
		return err
	}
	if s.Result.Kernel, err = s.machine.Kernel(ctx); err != nil {
		return err
	}
	out, err := s.machine.Exec(ctx, "nproc")
	if err != nil {
		return err
	}
	s.Result.CPUs, err = strconv.Atoi(strings.TrimSpace(string(out)))
	s.Progress("the machine is up (%s, kernel %s); the measurements take about %v",
		s.Result.Platform, s.Result.Kernel, s.Estimate())
	return err
}

// Close ends the machine.
func (s *run) Close() error {
	if s.machine == nil {
		return nil
	}
	return s.machine.Close()
}

// loads measures all tasks on all disks.
func (s *run) loads(ctx context.Context) error {
	for _, d := range s.disks {
		if err := d.prepare(ctx, s.machine, s.RunConfig); err != nil {
			return fmt.Errorf("disk %s: %w", d.name, err)
		}
	}
	var runs []*taskRun
	var groups []bench.Group
	for _, d := range s.disks {
		for _, t := range tasks() {
			if t.everywhere || d.name == free {
				r := &taskRun{task: t, disk: d, values: map[figure]map[string][]float64{}}
				runs, groups = append(runs, r), append(groups, s.group(r))
			}
		}
	}
	// The groups have no pairs, so they add no cases.
	err := s.Interleave(ctx, groups)
	for _, r := range runs {
		cases, failed := r.cases()
		s.Result.Cases = append(s.Result.Cases, cases...)
		err = errors.Join(err, failed)
	}
	return err
}
