package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// side is one thing that is measured.
type side struct{ name, file, engine, aead string }

// sides are all. The engine is compared with each of the others.
var sides = []side{
	{"kubeveil", "k", worker.EngineKubeveil, ""},
	{"kubeveil with x/crypto", "x", worker.EngineKubeveil, "x/crypto"},
	{"wireguard-go", "w", worker.EngineWireGuardGo, ""},
	{"clear", "c", "", ""},
	{tlsPair, "h", "", ""},
}

// tlsPair is a pair of TLS proxies. It carries TCP only.
const tlsPair = "TLS proxies"

// Suite is the name of this suite in pkg/bench/gates.json.
const Suite = "bench-engine"

// Options choose the measurements.
type Options struct {
	Root string
	// Rounds is the number of measurements of each side; 0 measures upgrades only.
	Rounds int
	Seed   uint64
	Sample time.Duration
	MTUs   []int
	// Upgrades is the number of upgrades that are measured at each MTU; 0 leaves them out.
	Upgrades int
	// Idle reports whether idle peers are measured.
	Idle     bool
	Progress func(format string, args ...any)
}

// Run measures, and returns a report also of a run that was ended early.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	result, err := bench.New(bench.Namespaces, o.Root)
	if err != nil {
		return nil, err
	}

	dir, err := os.MkdirTemp("/dev/shm", "kvbench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tier, err := aead.Choose()
	if tier == nil {
		return nil, err
	}

	result.AEAD = tier.Name
	var errs []error
	var tables []report.Table
	for _, mtu := range o.MTUs {
		cases, more, err := o.measure(ctx, mtu, dir)
		result.Cases, tables = append(result.Cases, cases...), append(tables, more...)
		errs = append(errs, err)
	}
	if o.Upgrades > 0 && ctx.Err() == nil {
		cases, err := o.measureCrowds(ctx, dir)
		result.Cases, errs = append(result.Cases, cases...), append(errs, err)
		cases, err = o.measureGarbage(ctx, dir, garbageRounds)
		result.Cases, errs = append(result.Cases, cases...), append(errs, err)
	}
	if o.Idle && ctx.Err() == nil {
		cases, err := o.measureIdle(ctx, dir)
		result.Cases, errs = append(result.Cases, cases...), append(errs, err)
	}
	gates, err := bench.Judge(result, Suite)
	result.Gates, errs = gates, append(errs, err)

	return &report.Report{
		Title: "Engines of the userspace tunnel",
		Lead: fmt.Sprintf("The engine of Kubeveil (AEAD: %s) beside itself with x/crypto, "+
			"wireguard-go and the clear network, on %s.",
			tier.Name, result.CPU),
		Result: result,
		Tables: tables,
		Notes: []string{
			"Pods, nodes and the wire between them are network namespaces of one machine.",
			"All sides are measured in each round, in an order that is drawn; ratios are of " +
				"one round.",
			"CPU covers the two device processes, in core-seconds per 10^9 bytes.",
			"udp is the highest rate of payload, datagrams of 1,300 bytes, at which at most 0.5 % " +
				"are lost. The TUNs of all sides hold 10,000 packets. A system call sends one " +
				"datagram; in udp_segmented it sends 32 (UDP_SEGMENT).",
			"flows_tcp and flows_in_turn compare 64 and 256 inner flows with one. In turn, each flow " +
				"sends one datagram after the other, 40,000 a second together; the value is CPU per " +
				"datagram. _of_wireguard_go compares wireguard-go's many flows with its one.",
			"The TLS proxies are two haproxy with mutual TLS 1.3 (AES-128-GCM) and two threads each. " +
				"They carry TCP only, and pay for each connection.",
			"Idle peers are 1,000 with a session and persistent keepalives of 25 s; CPU is of one core.",
			"Latencies are round trips of 64-byte datagrams, in microseconds.",
			"An upgrade replaces a device process under a stream that is to carry 1 Gbit/s and " +
				"1,000 datagrams a second each way. upgrade_stream is what was carried.",
			"A pause is the longest one-way time of a datagram while a process is replaced, or for " +
				"the same time without a handover.",
			"garbage_first_packet is from the configuration of a peer to its first datagram, beside " +
				"10,000 random messages a second.",
			"upgrade_stood_still_1000 and _10000 are upgrades of a device with so many peers that " +
				"have sessions.",
		},
	}, errors.Join(errs...)
}

// measure measures the sides, and then upgrades.
func (o Options) measure(ctx context.Context, mtu int, dir string) (cases []bench.Case,
	tables []report.Table, err error) {
	if o.Rounds > 0 {
		cases, err = o.compare(ctx, mtu, dir)
	}
	if o.Upgrades > 0 && ctx.Err() == nil {
		more, phases, e := o.measureUpgrades(ctx, mtu, dir)
		cases, tables, err = append(cases, more...), phases, errors.Join(err, e)
	}
	return cases, tables, err
}

// compare measures all sides, and returns the cases also of a run that was ended early.
func (o Options) compare(ctx context.Context, mtu int, dir string) ([]bench.Case, error) {
	worlds := map[string]*world{}
	defer func() {
		for _, w := range worlds {
			w.close()
		}
	}()

	for _, s := range sides {
		w, err := build(ctx, s, mtu, dir)
		worlds[s.name] = w
		if err != nil {
			return nil, err
		}
		o.Progress("mtu %d: %s is ready", mtu, s.name)
	}

	group := func(name string, unit bench.Unit, tcp bool,
		m func(context.Context, *world) (bench.Sample, error)) bench.Group {
		g := bench.Group{Name: name, MTU: mtu, Unit: unit}
		for _, s := range sides {
			if s.name == tlsPair && !tcp {
				continue
			}
			w := worlds[s.name]
			g.Sides = append(g.Sides, bench.Side{Name: s.name,
				Measure: func(ctx context.Context) (bench.Sample, error) { return m(ctx, w) }})
		}
		g.Pairs = []bench.Pair{{Name: name, Ours: sides[0].name, Base: sides[2].name},
			{Name: name + "_xcrypto", Ours: sides[1].name, Base: sides[2].name},
			{Name: name + "_to_clear", Ours: sides[0].name, Base: sides[3].name}}
		if tcp {
			g.Pairs = append(g.Pairs, bench.Pair{Name: name + "_to_tls_proxies",
				Ours: sides[0].name, Base: tlsPair})
		}
		return g
	}

	tcp := func(n int) func(context.Context, *world) (bench.Sample, error) {
		return func(ctx context.Context, w *world) (bench.Sample, error) {
			return w.throughput(ctx, n, o.Sample)
		}
	}
	ping := func(n int) func(context.Context, *world) (bench.Sample, error) {
		return func(ctx context.Context, w *world) (bench.Sample, error) {
			return w.latency(ctx, n, o.Sample/2)
		}
	}

	groups := []bench.Group{
		group("tcp_1", bench.Mbps, true, tcp(1)), group("tcp_4", bench.Mbps, true, tcp(4)),
		group("latency", bench.Microsecond, false, ping(0)),
		group("latency_beside_4", bench.Microsecond, false, ping(4)),
	}
	if mtu == udpMTU {
		groups = append(groups, group("udp", bench.Mbps, false, o.highestUDP(1)),
			group("udp_segmented", bench.Mbps, false, o.highestUDP(udpSegments)))
		groups = append(groups, o.flowGroups(mtu, worlds)...)
	}

	r := bench.Runner{Rounds: o.Rounds, Seed: o.Seed, Progress: o.Progress}
	return r.RunGroups(ctx, groups)
}

// highestUDP returns a measure of the highest rate of UDP. Each side's search begins where the one
// before ended.
func (o Options) highestUDP(segments int) func(context.Context, *world) (bench.Sample, error) {
	hints := map[string]*float64{}
	for _, s := range sides {
		hints[s.name] = new(float64)
	}
	return func(ctx context.Context, w *world) (bench.Sample, error) {
		return w.highestUDP(ctx, o.Sample/4, segments, hints[w.side.name])
	}
}
