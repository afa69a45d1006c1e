package network

import (
	"context"
	"errors"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// churnWindows is the number of equal parts of the churn time. Each part is one sample.
const churnWindows = 5

// churnPatience is the time that churn may take beyond its duration.
const churnPatience = 2 * time.Minute

// inFlight returns the number of pods that may be starting at a time. More pods would overload an
// emulated node, and the overload would be measured. churn may then not reach testbed.ChurnRate, so
// the reached rate is a case of its own.
func inFlight(platform string) int {
	if platform == bench.Emulated {
		return 2
	}
	return 10
}

// churn measures the CPU time and the memory of veild while pods are created and deleted.
func (s *run) churn(ctx context.Context) error {
	if s.Churn < 0 {
		s.Skip(caseChurnCPU, "left out by the caller")
		return nil
	}

	s.Progress("%d pods a minute for %v", testbed.ChurnRate, s.Churn)
	ctx, cancel := context.WithTimeoutCause(ctx, s.Churn+churnPatience,
		errors.New("the churn did not end in time"))
	defer cancel()
	pods := testbed.NewChurn(ctx, s.bed, inFlight(s.Result.Platform))
	var cpu, memory []float64

	before, err := s.bed.Snapshot(ctx)
	for range churnWindows {
		if err != nil {
			return err
		}

		began := time.Now()
		if err := poll.Pause(ctx, s.Churn/churnWindows); err != nil {
			return err
		}

		var after [2]session.Counters
		if after, err = s.bed.Snapshot(ctx); err != nil {
			return err
		}

		busiest, largest := 0.0, 0.0
		for i := range after {
			busiest = max(busiest, (after[i].DaemonCPU-before[i].DaemonCPU).Seconds()/time.Since(
				began).Seconds()*100)
			largest = max(largest, after[i].DaemonMiB)
		}

		cpu, memory = append(cpu, busiest), append(memory, largest)
		before = after
	}

	ready, err := pods.Stop()
	if err != nil {
		return err
	}

	rate := float64(ready) / s.Churn.Minutes()
	s.Result.Cases = append(s.Result.Cases,
		bench.Case{Name: caseChurnCPU, Unit: bench.Percent, Ours: bench.Summarize(cpu)},
		bench.Case{Name: caseChurnMemory, Unit: bench.MiB, Ours: bench.Summarize(memory)},
		bench.Case{Name: caseChurnRate, Unit: bench.Count, Ours: bench.Summarize([]float64{rate})})
	return nil
}
