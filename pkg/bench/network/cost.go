package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// guardPrograms is the prefix of the names of the guard's BPF programs at links.
const guardPrograms = "guard_"

// costTime is the duration of a sample of the guard's cost.
const costTime = 2 * time.Second

// guardCost measures the time of the guard's programs per packet and their share of a processor,
// while datagrams go through Kubeveil at the lowest rate of the case pod_udp.
func (s *run) guardCost(ctx context.Context) error {
	ours := s.podTarget(sideOurs)
	c := s.Result.Find("pod_udp", s.at.Underlay)
	if c == nil {
		s.Skip(caseGuardCost, "no rate of ours is known")
		return nil
	}
	var nanos, shares []float64
	for range s.Rounds {
		ran, err := s.guardSample(ctx, ours, c.Ours.Min)
		if err != nil {
			return err
		}
		nanos = append(nanos, float64(ran.Took.Nanoseconds())/float64(ran.Runs))
		shares = append(shares, 100*ran.Took.Seconds()/costTime.Seconds()/float64(
			len(s.bed.Nodes)))
	}
	s.Progress("the guard's programs take %v a packet",
		bench.Nanosecond.Format(bench.Summarize(nanos).Median))
	s.Result.Cases = append(s.Result.Cases,
		bench.Case{Name: caseGuardCost, MTU: s.at.Underlay, Unit: bench.Nanosecond,
			Ours: bench.Summarize(nanos)},
		bench.Case{Name: caseGuardShare, MTU: s.at.Underlay, Unit: bench.Percent,
			Ours: bench.Summarize(shares)})
	return nil
}

// guardSample counts the runs of the guard's programs on both nodes for costTime, while it sends
// datagrams to t at rate Mbit/s.
func (s *run) guardSample(ctx context.Context, t target,
	rate float64) (all session.Ran, err error) {
	flow := make(chan error, 1)
	go func() {
		_, err := s.flow(t, costTime+time.Second).UDP(ctx, rate, load.UDPPayload4(t.mtu))
		flow <- err
	}()
	counts := make([]session.Ran, len(s.bed.Nodes))
	err = s.bed.Both(func(i int, p *testbed.Place) error {
		return p.OnNode.Call(ctx, session.VerbPrograms,
			session.Programs{Prefix: guardPrograms, For: costTime}, &counts[i])
	})
	err = errors.Join(err, <-flow)
	for _, c := range counts {
		all.Runs, all.Took = all.Runs+c.Runs, all.Took+c.Took
	}
	if err != nil {
		return all, err
	}
	if all.Runs == 0 {
		return all, fmt.Errorf("no program %s* ran on %s and %s: is it Kubeveil's guard that "+
			"is there?", guardPrograms, s.bed.Client().Name, s.bed.Server().Name)
	}
	return all, nil
}
