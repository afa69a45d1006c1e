package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
)

// costly are the programs that a client of TCP over IPv4 meets.
var costly = []string{"service_connect4"}

const prefixCost = "cost_"

// cost counts nanoseconds a run of our programs, by the kernel's own statistics, with tables of the first and the last size. The
// statistics are on for as long as that takes, and cost something themselves.
func (s *suite) cost(ctx context.Context) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("statistics of programs: %w", err)
	}
	defer stats.Close()
	for _, n := range []int{s.Sizes[0], s.Sizes[len(s.Sizes)-1]} {
		l, err := s.lane(ctx, sideOurs, size{n, endpoints}, 0, pod)
		if err != nil {
			return err
		}
		nanos := map[string][]float64{}
		for range s.Rounds {
			if err := s.costRound(ctx, l, nanos); err != nil {
				return err
			}
		}
		for _, name := range costly {
			s.one(fmt.Sprintf("%s%s_%d_services", prefixCost, name, n), bench.Nanosecond, nanos[name]...)
		}
	}
	return nil
}

// costRound makes connections and notes what a run of each program took on the average.
func (s *suite) costRound(ctx context.Context, l *lane, nanos map[string][]float64) error {
	before, err := s.stats(l)
	if err != nil {
		return err
	}
	load := openloop.Load{Kind: openloop.Connect, To: l.target(pod, 1), Slots: crrSlots, Duration: s.Sample}
	if _, err := s.ground.openLoop(ctx, l, pod, load); err != nil {
		return err
	}
	after, err := s.stats(l)
	if err != nil {
		return err
	}
	for _, name := range costly {
		runs := after[name].runs - before[name].runs
		if runs == 0 {
			return fmt.Errorf("%s was not run: the clients are not in its cgroup", name)
		}
		nanos[name] = append(nanos[name], float64(after[name].nanos-before[name].nanos)/float64(runs))
	}
	return nil
}

// runs of a program, and the nanoseconds they took.
type runs struct{ runs, nanos uint64 }

// stats reads the statistics of the programs that are attached for a lane.
func (s *suite) stats(l *lane) (map[string]runs, error) {
	out := map[string]runs{}
	for _, name := range costly {
		r, err := programStats(filepath.Join(s.ground.pins.dir(fmt.Sprintf("lane%d", l.number)), name))
		if err != nil {
			return nil, fmt.Errorf("statistics of %s: %w", name, err)
		}
		out[name] = r
	}
	return out, nil
}

// programStats gives those of the program of a pinned link.
func programStats(pin string) (r runs, err error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	info, err := l.Info()
	if err != nil {
		return r, err
	}
	prog, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return r, err
	}
	defer prog.Close()
	stats, err := prog.Stats()
	if err != nil {
		return r, err
	}
	return runs{stats.RunCount, uint64(stats.Runtime)}, nil
}
