package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/load"
	"github.com/kubeveil/kubeveil/e2e/bench/remote"
)

// guardPrograms begins the names of the guard's programs at links.
const guardPrograms = "guard_"

// costTime is how long a sample of the guard's cost takes.
const costTime = 2 * time.Second

// moreLinks is at how many more links of a node a packet of the other sides passes the guard's program: the veth's and the bare device.
const moreLinks = 2

// guardCost measures what the guard's program takes for a packet while datagrams go by bare WireGuard at a rate that it carried, and what share
// of a processor the passages come to that only the other sides have.
func (s *suite) guardCost(ctx context.Context) error {
	bare := s.podTarget(sideBare)
	c := s.result.Find("pod_udp", s.at.underlay)
	if s.wiring.noBare != "" || c == nil || c.Base == nil {
		s.skip(caseGuardCost, "no rate of bare WireGuard is known")
		return nil
	}
	rate := c.Base.Min
	perSecond := rate * 1e6 / 8 / float64(load.UDPPayload4(bare.mtu))
	var nanos, shares []float64
	for range s.Rounds {
		took, err := s.guardSample(ctx, bare, rate)
		if err != nil {
			return err
		}
		nanos = append(nanos, float64(took.Nanoseconds()))
		shares = append(shares, moreLinks*took.Seconds()*perSecond*100)
	}
	s.Progress("the guard's program takes %v a packet", bench.Nanosecond.Format(bench.Summarize(nanos).Median))
	s.result.Cases = append(s.result.Cases,
		bench.Case{Name: caseGuardCost, MTU: s.at.underlay, Unit: bench.Nanosecond, Ours: bench.Summarize(nanos)},
		bench.Case{Name: caseGuardShare, MTU: s.at.underlay, Unit: bench.Percent, Ours: bench.Summarize(shares)})
	return nil
}

// guardSample gives the time of a run of the guard's programs, of both nodes on the average.
func (s *suite) guardSample(ctx context.Context, t target, rate float64) (time.Duration, error) {
	flow := make(chan error, 1)
	go func() {
		_, err := s.flow(t, costTime+time.Second).UDP(ctx, rate, load.UDPPayload4(t.mtu))
		flow <- err
	}()
	var all remote.Ran
	answers := make(chan error, len(s.ground.nodes))
	counts := make([]remote.Ran, len(s.ground.nodes))
	for i, p := range s.ground.nodes {
		go func() {
			answers <- p.onNode.Call(ctx, remote.VerbPrograms, remote.Programs{Prefix: guardPrograms, For: costTime}, &counts[i])
		}()
	}
	err := errors.Join(<-answers, <-answers, <-flow)
	for _, c := range counts {
		all.Runs, all.Took = all.Runs+c.Runs, all.Took+c.Took
	}
	if err != nil {
		return 0, err
	}
	if all.Runs == 0 {
		return 0, fmt.Errorf("no program %s* ran on %s and %s: is it Kubeveil's guard that is there?", guardPrograms, s.ground.client().Name, s.ground.server().Name)
	}
	return all.Took / time.Duration(all.Runs), nil
}
