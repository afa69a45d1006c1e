package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// side is one side of the comparison. file is the prefix of its folder. engine is "" for sides
// without a device process. aead is "" for the engine's own choice.
type side struct{ name, file, engine, aead string }

// sides lists all sides. The first is Kubeveil's engine.
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

// benchmark has the parts in the order in which they run. Whole is set because the names of cases
// do not begin with the name of a part.
var benchmark = suite.Suite[*run]{Name: Suite, Whole: true, Parts: []suite.Part[*run]{
	{Name: "sides", Run: (*run).compare},
	{Name: "upgrades", Run: (*run).upgrades},
	{Name: "crowds", Run: (*run).crowds},
	{Name: "garbage", Run: (*run).garbage},
	{Name: "idle", Run: (*run).idle},
}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// RunConfig selects the measurements.
type RunConfig struct {
	suite.Choice
	// Sample is the duration of a sample of TCP. Samples of latency take half of it; each rate of
	// UDP takes a quarter.
	Sample time.Duration
	// MTUs are the MTUs of the link between the nodes.
	MTUs []int
	// Upgrades is the number of measured upgrades at each MTU.
	Upgrades int
}

// Check returns an error if an option is out of range.
func (o RunConfig) Check() error {
	if o.Upgrades < 1 || o.Sample <= 0 || len(o.MTUs) == 0 {
		return fmt.Errorf("%d upgrades, samples of %v, MTUs %v: want at least one of each",
			o.Upgrades, o.Sample, o.MTUs)
	}
	for _, n := range o.MTUs {
		if n < 1280 || n > 65535 {
			return fmt.Errorf("MTU %d: want 1280 to 65535", n)
		}
	}
	return benchmark.Check(o.Choice)
}

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	// dir is the folder of the device processes' files.
	dir    string
	tables []report.Table
}

// Run measures the chosen parts and returns the report. If an error ends the run after measuring
// began, Run returns it beside a report of the results so far. A missed gate is not an error. Run
// needs root, and its program must call Child first.
func Run(ctx context.Context, o RunConfig) (*report.Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return benchmark.Run(ctx, o.Choice, func(_ context.Context, r *suite.Run) (*run, error) {
		s := &run{RunConfig: o, Run: r}
		tier, err := aead.Choose()
		if tier == nil {
			return s, err
		}
		r.Result.AEAD = tier.Name
		// The folder is in memory, as on a node. Its path is short, because the path of a socket
		// has at most 107 bytes.
		s.dir, err = os.MkdirTemp("/dev/shm", "kvbench-")
		return s, err
	})
}

// Close removes the folder of the device processes.
func (s *run) Close() error { return os.RemoveAll(s.dir) }

// keep adds cases to the result.
func (s *run) keep(cases ...bench.Case) { s.Result.Cases = append(s.Result.Cases, cases...) }

// Report returns the report with the tables and notes of all parts.
func (s *run) Report() *report.Report {
	return &report.Report{
		Title: "Engines of the userspace tunnel",
		Lead: fmt.Sprintf("The engine of Kubeveil (AEAD: %s) beside itself with x/crypto, "+
			"wireguard-go and the clear network, on %s.", s.Result.AEAD, s.Result.CPU),
		Tables: s.tables,
		Notes:  append(slices.Clone(notes), s.Notes...),
	}
}

var notes = []string{
	"Pods, nodes and the wire between them are network namespaces of one machine.",
	"All sides are measured in each round, in random order. Ratios compare values of one round.",
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
	"An upgrade replaces a device process under a stream of 1 Gbit/s and 1,000 datagrams per " +
		"second in each direction. upgrade_stream is the rate that arrived.",
	"A pause is the longest one-way time of a datagram while a process is replaced, or during " +
		"an equal time without a handover.",
	"garbage_first_packet is the time from the configuration of a peer to its first datagram, " +
		"while 10,000 random messages arrive per second.",
	"upgrade_stood_still_1000 and _10000 are upgrades of a device with sessions with that many " +
		"peers.",
}

// eachMTU calls measure for each MTU. After an error it continues with the next MTU.
func (s *run) eachMTU(ctx context.Context, measure func(context.Context, int) error) error {
	var errs []error
	for _, mtu := range s.MTUs {
		if ctx.Err() == nil {
			errs = append(errs, measure(ctx, mtu))
		}
	}
	return errors.Join(errs...)
}

// compare measures all sides at each MTU.
func (s *run) compare(ctx context.Context) error { return s.eachMTU(ctx, s.compareAt) }

func (s *run) compareAt(ctx context.Context, mtu int) error {
	worlds := map[string]*world{}
	defer func() {
		for _, w := range worlds {
			w.close()
		}
	}()

	for _, one := range sides {
		w, err := build(ctx, one, mtu, s.dir)
		worlds[one.name] = w
		if err != nil {
			return err
		}
		s.Progress("mtu %d: %s is ready", mtu, one.name)
	}

	group := func(name string, unit bench.Unit, tcp bool,
		m func(context.Context, *world) (bench.Sample, error)) bench.Group {
		g := bench.Group{Name: name, MTU: mtu, Unit: unit}
		for _, one := range sides {
			if one.name == tlsPair && !tcp {
				continue
			}
			w := worlds[one.name]
			g.Sides = append(g.Sides, bench.Side{Name: one.name,
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
			return w.throughput(ctx, n, s.Sample)
		}
	}
	ping := func(n int) func(context.Context, *world) (bench.Sample, error) {
		return func(ctx context.Context, w *world) (bench.Sample, error) {
			return w.latency(ctx, n, s.Sample/2)
		}
	}

	groups := []bench.Group{
		group("tcp_1", bench.Mbps, true, tcp(1)), group("tcp_4", bench.Mbps, true, tcp(4)),
		group("latency", bench.Microsecond, false, ping(0)),
		group("latency_beside_4", bench.Microsecond, false, ping(4)),
	}
	if mtu == udpMTU {
		groups = append(groups, group("udp", bench.Mbps, false, s.highestUDP(1)),
			group("udp_segmented", bench.Mbps, false, s.highestUDP(udpSegments)))
		groups = append(groups, s.flowGroups(mtu, worlds)...)
	}

	return s.Interleave(ctx, groups)
}

// highestUDP returns a measure of the highest rate of UDP. The search of a side begins at the
// result of that side's previous search.
func (s *run) highestUDP(segments int) func(context.Context, *world) (bench.Sample, error) {
	hints := map[string]*float64{}
	for _, one := range sides {
		hints[one.name] = new(float64)
	}
	return func(ctx context.Context, w *world) (bench.Sample, error) {
		return w.highestUDP(ctx, s.Sample/4, segments, hints[w.side.name])
	}
}
