package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// goawayFlag is the flag that docs/how-to/several-api-servers recommends.
	goawayFlag = "--goaway-chance=0.001"
	// fleetSize is the number of clients.
	fleetSize = 200
)

// Cases of part restart. The first two are the largest number of connections of a server divided by
// the smallest, at the end and directly after the restart. The others count requests and
// connections.
const (
	caseSpread       = "restart_most_to_fewest"
	caseSpreadBefore = "restart_most_to_fewest_before"
	caseRestartDone  = "restart_requests"
	caseRestartLost  = "restart_requests_failed"
	// caseRestartClosed counts the connections that veild closed after the restart. Other
	// connections moved because of GOAWAY.
	caseRestartClosed = "restart_closed"
)

// restart restarts the API servers one after the other while clients send requests. It then
// measures for s.Settle how the clients' connections are spread over the servers.
func (s *run) restart(ctx context.Context) error {
	err := s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *faultlab.Lab) error {
		if err := b.Good(ctx); err != nil {
			return err
		}
		clients, err := b.Child(ctx, b.Pod, "fleet", b.Dir, b.Service.String(),
			strconv.Itoa(fleetSize))
		if err != nil {
			return err
		}
		b.Hold(clients)
		if err := clients.WaitLine(ctx, client.LineHeld, time.Minute); err != nil {
			return err
		}
		if err := b.Mark(); err != nil {
			return err
		}
		if err := b.Roll(ctx, goawayFlag); err != nil {
			return err
		}
		return s.settle(ctx, b, clients)
	})
	// Close the lab, because its servers now have other flags than other parts need.
	return errors.Join(err, s.closeLab())
}

// settle waits for s.Settle, so that connections can move, and adds the cases.
func (s *run) settle(ctx context.Context, b *faultlab.Lab, clients *lab.Process) error {
	first, err := s.look(ctx, b, 0)
	if err != nil {
		return err
	}
	before, err := b.Closed(ctx)
	if err != nil {
		return err
	}
	last := first
	for began := time.Now(); time.Since(began) < s.Settle; {
		faultlab.Pause(ctx, min(time.Minute, s.Settle-time.Since(began)))
		if last, err = s.look(ctx, b, time.Since(began)); err != nil {
			return err
		}
	}

	after, err := b.Closed(ctx)
	if err != nil {
		return err
	}
	var sum client.Tally
	if err := clients.Result(ctx, &sum); err != nil {
		return err
	}
	const label = "Rolling restart: "
	ratio := label + "most connections of a server to fewest, "
	s.Add(caseSpread, ratio+s.Settle.String()+" later", bench.Count, ratioOf(last))
	s.Add(caseSpreadBefore, ratio+"at once", bench.Count, ratioOf(first))
	s.Add(caseRestartClosed, label+"connections that veild closed in this time", bench.Count,
		float64(after-before))
	s.Add(caseRestartDone, label+"requests that were answered, from its begin on", bench.Count,
		float64(sum.Done))
	s.Add(caseRestartLost, label+"requests that failed, from its begin on", bench.Count,
		float64(sum.Failed))
	return nil
}

// look returns the number of the clients' connections to each server, and reports it as progress.
// after is the time since the restart.
func (s *run) look(ctx context.Context, b *faultlab.Lab, after time.Duration) ([]int, error) {
	counts, err := b.Spread(ctx)
	if err != nil {
		return nil, err
	}
	s.Progress("%v after the rolling restart: connections to the servers %v",
		after.Round(time.Second), counts)
	if slices.Max(counts) == 0 {
		return nil, errors.New("no client is connected to an API server")
	}
	return counts, nil
}

// ratioOf returns the largest count divided by the smallest. A server without connections counts as
// if it had one.
func ratioOf(counts []int) float64 {
	return float64(slices.Max(counts)) / float64(max(1, slices.Min(counts)))
}
