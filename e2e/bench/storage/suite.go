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
)

// suite is one run.
type suite struct {
	Options
	machine *disk.Machine
	disks   []*sideDisk
	runner  bench.Runner
	result  *bench.Result
}

// Run starts a machine, measures, ends it, and returns the report. The gates of the machine's
// platform judge the result. A part that fails is listed as skipped with its error and misses its
// gates; Run then returns no error. If ctx ends a part, Run returns an error beside the
// measurements so far. It needs root.
func Run(ctx context.Context, o Options) (rep *report.Report, err error) {
	o.setDefaults()
	s := &suite{Options: o, disks: newDisks(o),
		runner: bench.Runner{Rounds: o.Rounds, Seed: o.Seed, Progress: o.Progress}}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}

	disks := []disk.Disk{stageDisk(o)}
	for _, d := range s.disks {
		disks = append(disks, d.Disk)
	}

	s.machine, err = disk.Start(ctx, disk.Options{Disks: disks, Dir: o.Dir, Log: o.Log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.machine.Close()) }()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}

	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"time to stage", s.stages}, {"reads and writes", s.loads}} {
		failed := part.run(ctx)
		if ctx.Err() != nil {
			failed = errors.Join(context.Cause(ctx), failed)
		}
		if failed == nil {
			continue
		}
		// What was measured is not lost for it; gates on what was not are missed.
		o.Progress("skipped: %s: %v", part.name, failed)
		s.result.Tests.Skipped = append(s.result.Tests.Skipped,
			bench.Skip{Name: part.name, Reason: "it failed: " + failed.Error()})
		if ctx.Err() != nil {
			err = fmt.Errorf("%s: %w", part.name, failed)
			break
		}
	}

	var judged error
	if s.result.Gates, judged = bench.Judge(s.result, Suite); judged != nil {
		return nil, errors.Join(err, judged)
	}

	return s.report(), err
}

// begin starts the result with what the machine is.
func (s *suite) begin(ctx context.Context) (err error) {
	if s.result, err = bench.New(s.machine.Platform(), s.Root); err != nil {
		return err
	}
	if s.result.Kernel, err = s.machine.Kernel(ctx); err != nil {
		return err
	}
	out, err := s.machine.Exec(ctx, "nproc")
	if err != nil {
		return err
	}
	s.result.CPUs, err = strconv.Atoi(strings.TrimSpace(string(out)))
	s.Progress("the machine is up (%s, kernel %s); the measurements take about %v",
		s.result.Platform, s.result.Kernel, s.Estimate())
	return err
}

// loads measures all tasks on all disks.
func (s *suite) loads(ctx context.Context) error {
	for _, d := range s.disks {
		if err := d.prepare(ctx, s.machine, s.Options); err != nil {
			return fmt.Errorf("disk %s: %w", d.name, err)
		}
	}
	var runs []*run
	var groups []bench.Group
	for _, d := range s.disks {
		for _, t := range tasks() {
			if t.everywhere || d.name == free {
				r := &run{task: t, disk: d, values: map[figure]map[string][]float64{}}
				runs, groups = append(runs, r), append(groups, s.group(r))
			}
		}
	}
	_, err := s.runner.RunGroups(ctx, groups)
	for _, r := range runs {
		cases, failed := r.cases()
		s.result.Cases = append(s.result.Cases, cases...)
		err = errors.Join(err, failed)
	}
	return err
}
