package network

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Options set durations and counts. Zero values are replaced by the default that each comment
// names.
type Options struct {
	// Choice has the defaults of SetDefaults, with 5 rounds and all parts.
	suite.Choice
	// TCP is the duration of a TCP sample in whole seconds, without the warm-up of a second; 0
	// means 2 s. Probe is the time of sending at one UDP rate; 0 means 1 s.
	TCP, Probe time.Duration
	// RoundTrips is the minimum time of measuring round trips; 0 means half a second.
	RoundTrips time.Duration
	// Prefix holds the addresses of the other two sides; the zero value means 198.18.192.0/24.
	// Their services use its first sixteen addresses, the first node the next sixteen, and the
	// second node the sixteen after that.
	Prefix netip.Prefix
	// Nodes are the names of the two nodes; empty selects the first two that are Ready and
	// schedulable.
	Nodes []string
	// MTUs are the MTUs of the underlay to measure at, in this order. SetMTU sets one on both
	// nodes. If one of them is missing, the suite measures at the present MTU.
	MTUs   []int
	SetMTU func(ctx context.Context, mtu int) error
	// Cap limits the link between the nodes, both ways, to a rate in Mbit/s; 0 removes the limit.
	// Nil means that the link cannot be limited.
	Cap func(ctx context.Context, mbps float64) error
	// Wire ends the leak oracle outside of the nodes and returns what it saw since the cluster
	// began. Run calls Wire after it has judged the nodes' own links and before the load. Nil means
	// that only the nodes' own links are watched.
	Wire func(ctx context.Context) (bench.Leaks, error)
	// Ready holds the times, in seconds, from kubectl apply until all nodes are Ready. If it is
	// empty, the report lists this case as skipped.
	Ready []float64
	// Reference is the result of testbed.FirstBytes on the reference network. Empty leaves the
	// comparison out.
	Reference []float64
	// Churn is the time during which pods are created and deleted; 0 means a minute, and a negative
	// time leaves this part out.
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

// DefaultPrefix is in the address block that RFC 2544 reserves for benchmarks.
var DefaultPrefix = netip.MustParsePrefix("198.18.192.0/24")

func (o *Options) setDefaults() {
	o.TCP, o.Probe = cmp.Or(o.TCP, defaultTCP), cmp.Or(o.Probe, defaultProbe)
	o.RoundTrips = cmp.Or(o.RoundTrips, defaultRoundTrips)
	o.Churn = cmp.Or(o.Churn, defaultChurn)
	o.Choice.SetDefaults(defaultRounds, Parts())
	if !o.Prefix.IsValid() {
		o.Prefix = DefaultPrefix
	}
}

// Check returns an error if the Choice is not valid.
func (o Options) Check() error { return benchmark.Check(o.Choice) }

// Costs of measurements on emulated machines, for Estimate. sampleOverhead is the time for reading
// counters and starting iperf3. searchProbes is the number of rates in a search that begins at the
// result of the last search. fixedCost is the time before and after the samples.
const (
	sampleOverhead = 2 * time.Second
	searchProbes   = 3
	fixedCost      = 90 * time.Second
)

// Estimate returns the approximate duration of Run.
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
