package engine

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// turnRate is the total number of datagrams per second in flows_in_turn, over all flows.
	turnRate = 40_000
	// turnBurst is the number of these datagrams that are sent at once.
	turnBurst = 256
)

// flowCounts are the numbers of flows that are compared with one flow.
var flowCounts = []int{64, 256}

// flowGroups returns groups that compare many inner flows with one flow, and with as many flows
// through wireguard-go. One group has TCP streams. In the other, flows send single datagrams in
// turn, which is the worst case for a receiver that coalesces; its value is CPU per datagram.
//
// With many streams, TCP itself sends smaller superpackets and more acknowledgements. To show what
// that costs any engine, a pair also compares many flows of wireguard-go with one of wireguard-go.
func (s *run) flowGroups(mtu int, worlds map[string]*world) []bench.Group {
	ours, reference := worlds[sides[0].name], worlds[sides[2].name]
	group := func(name string, unit bench.Unit, measure func(context.Context, *world,
		int) (bench.Sample, error)) bench.Group {
		g := bench.Group{Name: name, MTU: mtu, Unit: unit}
		side := func(w *world, flows int) string {
			name := fmt.Sprintf("%s, %d flows", w.side.name, flows)
			g.Sides = append(g.Sides, bench.Side{Name: name,
				Measure: func(ctx context.Context) (bench.Sample, error) {
					return measure(ctx, w, flows)
				}})
			return name
		}

		one, otherOne := side(ours, 1), side(reference, 1)
		for _, n := range flowCounts {
			many, other := side(ours, n), side(reference, n)
			label := fmt.Sprintf("%s_%d", name, n)
			g.Pairs = append(g.Pairs, bench.Pair{Name: label, Ours: many, Base: one},
				bench.Pair{Name: label + "_to_wireguard_go", Ours: many, Base: other},
				bench.Pair{Name: label + "_of_wireguard_go", Ours: other, Base: otherOne})
		}
		return g
	}

	return []bench.Group{
		group("flows_tcp", bench.Mbps, func(ctx context.Context, w *world, n int) (bench.Sample, error) {
			return w.throughput(ctx, n, s.Sample)
		}),
		group("flows_in_turn", bench.Microsecond,
			func(ctx context.Context, w *world, n int) (bench.Sample, error) {
				return w.turns(ctx, n, s.Sample)
			}),
	}
}

// turns sends datagrams from pod a to pod b for d, by flows that send in turn. It returns the CPU
// time per datagram in microseconds.
func (w *world) turns(ctx context.Context, flows int, d time.Duration) (bench.Sample, error) {
	server, clients, stop, err := w.udp(podA, podB, flows)
	if err != nil {
		return bench.Sample{}, err
	}
	defer stop()
	n, cpu, err := w.arrived(ctx, server, func() error { return takeTurns(ctx, clients, warmUp) },
		func() error { return takeTurns(ctx, clients, d) })
	if err != nil {
		return bench.Sample{}, err
	}
	if n == 0 {
		return bench.Sample{}, fmt.Errorf("%s: no datagram arrived", w.side.name)
	}
	return bench.Sample{Value: float64(cpu.Microseconds()) / float64(n)}, nil
}

// takeTurns sends datagrams in bursts for d, each by the next of clients.
func takeTurns(ctx context.Context, clients []*net.UDPConn, d time.Duration) error {
	payload := make([]byte, udpPayload)
	began := time.Now()
	for sent := 0; time.Since(began) < d; {
		due := began.Add(time.Duration(sent) * time.Second / turnRate)
		if err := poll.Pause(ctx, time.Until(due)); err != nil {
			return err
		}
		for range turnBurst {
			if _, err := clients[sent%len(clients)].Write(payload); err != nil {
				return fmt.Errorf("send datagram %d: %w", sent+1, err)
			}
			sent++
		}
	}
	return nil
}
