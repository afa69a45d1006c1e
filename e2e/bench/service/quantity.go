package service

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// quantity is a quantity that is measured on each side.
type quantity struct {
	name, title string
	unit        bench.Unit
	// published is loxilb's published ratio over IPVS; 0 means that loxilb published none.
	published float64
	// noProxy leaves out haproxy, which has no UDP.
	noProxy bool
	measure func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error)
	// extras are the further quantities of the same measurement.
	extras []extra
}

// extra is a further quantity of a measurement.
type extra struct {
	suffix, title string
	unit          bench.Unit
	published     float64
}

// Names of quantities.
const (
	qCPS        = "connections"
	qCRR        = "connect_request_response"
	qCRRLatency = "connect_request_response_latency"
	qRPS        = "requests"
	qRRLatency  = "request_response_latency"
	qRTT        = "round_trip"
	qStream     = "tcp_8_streams"
	qDatagram   = "datagram_latency"
	qLoose      = "loose_datagram_latency"

	suffixCPU   = "_processor"
	suffixLeast = "_least"
)

const (
	crrSlots = 16  // clients of the closed loop
	crrRate  = 971 // prime, so it does not align with the clock ticks that sample CPU time
	rrRate   = 1949
	rrSlots  = 8
	openMax  = 256 // concurrent operations in an open loop
	streams  = 8
	warm     = 200 * time.Millisecond
)

// perOperation is the extra of quantities whose samples have the CPU time of an operation.
var perOperation = []extra{{suffixCPU, "processor time each", bench.Microsecond, 0}}

var quantities = []quantity{
	{
		name: qCPS, title: "Connections, wrk with Connection: close", unit: bench.PerSecond,
		published: 1.16,
		measure: func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
			return s.wrk(ctx, l, r, true)
		},
		extras: perOperation,
	},
	{
		name: qCRR, title: fmt.Sprintf("Connect, request, response: %d clients", crrSlots),
		unit: bench.PerSecond, published: 1.18,
		measure: func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
			res, err := s.ground.openLoop(ctx, l, r,
				openloop.Load{Kind: openloop.Connect, To: []netip.AddrPort{l.target(r, 1)},
					Slots: crrSlots, Warm: warm, Duration: s.Sample})
			return each(res.PerSecond, res.Spent, float64(res.Done)), err
		},
		extras: perOperation,
	},
	{
		name: qCRRLatency, title: "Connect, request, response at a fixed rate",
		unit:    bench.Microsecond,
		measure: atRate(openloop.Load{Kind: openloop.Connect, Rate: crrRate, Slots: openMax}),
		extras:  perOperation,
	},
	{
		name: qRPS, title: "Requests, wrk over connections that stay", unit: bench.PerSecond,
		published: 1.12,
		measure: func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
			return s.wrk(ctx, l, r, false)
		},
		extras: perOperation,
	},
	{
		name: qRRLatency, title: "Request and response at a fixed rate", unit: bench.Microsecond,
		published: 0.60,
		measure:   atRate(openloop.Load{Kind: openloop.Request, Rate: rrRate, Slots: rrSlots}),
		extras:    perOperation,
	},
	{
		name: qRTT, title: "Round trip, sockperf, mean", unit: bench.Microsecond, published: 0.60,
		measure: func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
			p, err := s.ground.sockperf(ctx, l, r, s.Sample)
			return bench.Sample{Value: p.mean,
				Extras: map[string]float64{suffixLeast: p.least}}, err
		},
		extras: []extra{{suffixLeast, "the least", bench.Microsecond, 0.77}},
	},
	{
		name: qStream, title: fmt.Sprintf("TCP, %d streams of iperf3", streams), unit: bench.Mbps,
		published: 1.20,
		measure: func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
			return s.ground.stream(ctx, l, r, streams, s.Sample)
		},
	},
	{
		name: qDatagram, title: "Datagram and answer at a fixed rate, connected sockets",
		unit: bench.Microsecond, noProxy: true,
		measure: atRate(openloop.Load{Kind: openloop.Datagram, Rate: rrRate, Slots: rrSlots}),
		extras:  perOperation,
	},
	{
		name: qLoose, title: "Datagram and answer at a fixed rate, sockets that are not connected",
		unit: bench.Microsecond, noProxy: true,
		measure: atRate(openloop.Load{Kind: openloop.Loose, Rate: rrRate, Slots: rrSlots}),
		extras:  perOperation,
	},
}

// each returns the sample of a rate, with the CPU time of the whole machine per operation.
func each(rate float64, spent time.Duration, operations float64) bench.Sample {
	return bench.Sample{Value: rate,
		Extras: map[string]float64{suffixCPU: bench.Micros(spent) / max(operations, 1)}}
}

// wrk runs wrk and returns its rate.
func (s *run) wrk(ctx context.Context, l *lane, r reach, short bool) (bench.Sample, error) {
	before, err := load.Busy()
	if err != nil {
		return bench.Sample{}, err
	}
	rate, err := s.ground.wrk(ctx, l, r, short, s.Sample)
	if err != nil {
		return bench.Sample{}, err
	}
	after, err := load.Busy()
	return each(rate, after-before, rate*s.Sample.Seconds()), err
}

// atRate returns the measure of an open loop: see latency.
func atRate(o openloop.Load) func(context.Context, *run, *lane, reach) (bench.Sample, error) {
	return func(ctx context.Context, s *run, l *lane, r reach) (bench.Sample, error) {
		return s.latency(ctx, l, r, o)
	}
}

// latency runs an open loop at the rate of o divided by s.Slower. Its sample also has the CPU time
// of the whole machine per operation.
func (s *run) latency(ctx context.Context, l *lane, r reach,
	o openloop.Load) (bench.Sample, error) {
	o.Rate /= float64(s.Slower)
	o.To, o.Warm, o.Duration = []netip.AddrPort{l.target(r, 1)}, warm, s.Sample
	before, err := load.Busy()
	if err != nil {
		return bench.Sample{}, err
	}
	res, err := s.ground.openLoop(ctx, l, r, o)
	if err != nil {
		return bench.Sample{}, err
	}
	after, err := load.Busy()
	each := bench.Micros(after-before) / (o.Rate * (o.Warm + o.Duration).Seconds())
	return bench.Sample{Value: bench.Micros(res.P50), P99: bench.Micros(res.P99),
		Extras: map[string]float64{suffixCPU: each}}, err
}
