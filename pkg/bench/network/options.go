package network

import (
	"context"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Options set durations and counts. Zero values are replaced by the default that each comment
// names.
type Options struct {
	// Choice has defaults, too: 5 rounds, a seed from the clock, all parts, and the current folder
	// as Root. Nil drops the progress.
	suite.Choice
	// TCP is the duration of a TCP sample in whole seconds, the first excluded; 0 means 2 s. Probe
	// is the duration of one rate of UDP; 0 means 1 s.
	TCP, Probe time.Duration
	// RoundTrips is the least time for which request and response are measured; 0 means half a
	// second.
	RoundTrips time.Duration
	// Prefix holds the addresses of the other two sides; the zero value means 198.18.192.0/24. The
	// first node gets the second sixteen, the other node the third.
	Prefix netip.Prefix
	// Nodes are the names of the two nodes; empty takes the first two that are Ready.
	Nodes []string
	// MTUs are the MTUs of the underlay to measure at, in this order. SetMTU sets one on both
	// nodes. If both are empty, the suite measures at the present MTU.
	MTUs   []int
	SetMTU func(ctx context.Context, mtu int) error
	// Cap limits the link between the nodes, both ways, to a rate in Mbit/s; 0 removes the limit.
	// Nil means that the link cannot be limited.
	Cap func(ctx context.Context, mbps float64) error
	// Wire returns what was seen outside of the nodes since the cluster began, and ends the oracle.
	// It is called after the nodes' own links were judged and before the load. Nil means that only
	// the nodes' own links are watched.
	Wire func(ctx context.Context) (bench.Leaks, error)
	// Ready are the seconds from apply to all nodes Ready. Empty lists the figure as skipped.
	Ready []float64
	// Reference is what FirstBytes returned on the reference network. Empty leaves the comparison
	// out.
	Reference []float64
	// Churn is the time for which pods come and go; 0 means a minute, and a negative time leaves it
	// out.
	Churn time.Duration
}

// Defaults.
const (
	defaultRounds     = 5
	defaultTCP        = 2 * time.Second
	defaultProbe      = time.Second
	defaultRoundTrips = 500 * time.Millisecond
	defaultChurn      = time.Minute
)

// DefaultPrefix is in the block for benchmarks (RFC 2544), which networks do not use.
var DefaultPrefix = netip.MustParsePrefix("198.18.192.0/24")

func (o *Options) setDefaults() {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&o.TCP, defaultTCP)
	def(&o.Probe, defaultProbe)
	def(&o.RoundTrips, defaultRoundTrips)
	def(&o.Churn, defaultChurn)

	if o.Rounds == 0 {
		o.Rounds = defaultRounds
	}
	if o.Seed == 0 {
		o.Seed = bench.NewSeed()
	}
	if len(o.Parts) == 0 {
		o.Parts = Parts()
	}
	if !o.Prefix.IsValid() {
		o.Prefix = DefaultPrefix
	}
	if o.Root == "" {
		o.Root = "."
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
}

// Check returns what is wrong with the choice.
func (o Options) Check() error { return benchmark.Check(o.Choice) }

// Costs of a sample beyond its time, on emulated machines. They are the reading of counters, the
// start of iperf3, and the number of rates in a search that begins at the last one's answer.
const (
	sampleOverhead = 2 * time.Second
	searchProbes   = 3
	fixedCost      = 90 * time.Second
)

// Estimate returns about how long Run takes.
func (o Options) Estimate() time.Duration {
	o.setDefaults()
	tcp := o.TCP + time.Second + sampleOverhead
	udp := searchProbes * (o.Probe + sampleOverhead)
	trips := tripsPatience*o.RoundTrips + sampleOverhead/4
	sample := 2*tcpTurns*tcp + udpTurns*udp + tripsTurns*trips
	const sides, destinations = 3, 2
	perMTU := sides * destinations * sample
	all := time.Duration(max(1, len(o.MTUs))) * perMTU
	if o.Cap != nil {
		all += 2 * (tcpTurns*tcp + udpTurns*udp)
	}
	return time.Duration(o.Rounds)*all + max(0, o.Churn) + fixedCost
}
