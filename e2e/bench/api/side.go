package api

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Names of sides.
const (
	sideOurs    = "ours"
	sideService = "service"
	sideKubelet = "kubelet"
	sideDirect  = "direct"
	sideAgain   = "again"
	sidePlain   = "plain"
	sideTCP     = "tcp_proxy"
	sideHAProxy = "haproxy"
	sideReTLS   = "impersonating_proxy"
)

// Suffixes of the cases of further quantities of a measurement.
const (
	suffixP99  = "_p99"
	suffixP90  = "_p90"
	suffixMean = "_mean"
	suffixCPU  = "_processor"
	suffixMore = "_more_requests"
)

var extras = []bench.Extra{{Suffix: suffixP90, Unit: bench.Microsecond},
	{Suffix: suffixMean, Unit: bench.Microsecond}, {Suffix: suffixCPU, Unit: bench.Millisecond}}

// side is a path to the API servers.
type side struct {
	name, title string
	// node is the number of the client's node. pod reports whether the client is in the node's pod.
	node int
	pod  bool
	// to holds the possible destinations. Each connection dials a random one of them.
	to []netip.AddrPort
}

// place returns where the client is, as text that follows "direct from ".
func (s side) place() string {
	place := "the node"
	if s.pod {
		place = "a pod"
	}
	if s.to[0].Addr().Is6() {
		place += " over IPv6"
	}
	return place
}

// sidesOf returns the sides of a part.
func sidesOf(part string) []side {
	to := func(a netip.AddrPort) []netip.AddrPort { return []netip.AddrPort{a} }
	switch part {

	case partPod6:
		return []side{
			{sideOurs, "Entry 0 from a pod over IPv6", testbed.Ours, true, to(testbed.Frontend6)},
			{sideDirect, "Direct from a pod over IPv6", testbed.Ours, true, testbed.Servers6()},
			{sideAgain, "Direct from a pod over IPv6 again, the control", testbed.Ours, true,
				testbed.Servers6()},
		}
	case partHost6:
		return []side{
			{sideService, "Entry 0 from the node over IPv6", testbed.Ours, false,
				to(testbed.Frontend6)},
			{sideKubelet, "By services.apiFrontends from the node over IPv6", testbed.Ours, false,
				to(testbed.HostFrontend6)},
			{sideDirect, "Direct from the node over IPv6", testbed.Ours, false, testbed.Servers6()},
			{sideAgain, "Direct from the node over IPv6 again, the control", testbed.Ours, false,
				testbed.Servers6()},
		}
	case partPod:
		return []side{
			{sideOurs, "Entry 0 from a pod", testbed.Ours, true, to(testbed.Frontend)},
			{sideDirect, "Direct from a pod", testbed.Ours, true, testbed.Servers()},
			{sideAgain, "Direct from a pod again, the control", testbed.Ours, true,
				testbed.Servers()},
			{sidePlain, "Direct from a pod of a node without Kubeveil", testbed.Plain, true,
				testbed.Servers()},
		}
	}
	return []side{
		{sideService, "Entry 0 from the node, by the service's address", testbed.Ours, false,
			to(testbed.Frontend)},
		{sideKubelet, "By services.apiFrontends from the node, as a kubelet", testbed.Ours, false,
			to(testbed.HostFrontend)},
		{sideDirect, "Direct from the node", testbed.Ours, false, testbed.Servers()},
		{sideAgain, "Direct from the node again, the control", testbed.Ours, false,
			testbed.Servers()},
		{sideTCP, "TCP proxy", testbed.Ours, false, to(testbed.ProxyTCP)},
		{sideHAProxy, "haproxy, TCP mode", testbed.Ours, false, to(testbed.ProxyHAProxy)},
		{sideReTLS, "Proxy of KubeGateway's shape", testbed.Ours, false, to(testbed.ProxyReTLS)},
	}
}

const (
	// connections is the number of clients. Each has one connection, as a client of client-go does.
	connections = 12
	// warm is the time at the beginning of a load that does not count.
	warm = 500 * time.Millisecond
)

// sample sends a load through a side for d and returns the sample. It also returns the difference
// between the servers' count of requests and the clients'.
func sample(ctx context.Context, g *testbed.Testbed, s side, rate int,
	d time.Duration) (bench.Sample, float64, error) {
	before, err := g.Requests(ctx)
	if err != nil {
		return bench.Sample{}, 0, err
	}
	out, err := g.Load(ctx, s.node, s.pod, client.Load{To: s.to, Connections: connections,
		Rate: float64(rate),
		Warm: warm, Duration: d})
	if err != nil {
		return bench.Sample{}, 0, err
	}
	after, err := g.Requests(ctx)
	if err != nil {
		return bench.Sample{}, 0, err
	}

	return bench.Sample{Value: bench.Micros(out.P50), P99: bench.Micros(out.P99),
		Extras: map[string]float64{
			suffixP90: bench.Micros(out.P90), suffixMean: bench.Micros(out.Mean),
			suffixCPU: bench.Micros(out.CPU) / 1000 * 10_000 / float64(out.Done),
		}}, math.Abs(float64(after - before - out.Requests)), nil
}

// prove returns an error unless all three servers answer through the side and count each request.
func prove(ctx context.Context, g *testbed.Testbed, s side) error {
	before, err := g.Requests(ctx)
	if err != nil {
		return err
	}
	// With 60 connections, the probability that one of three servers gets none is 10^-10.
	out, err := g.Load(ctx, s.node, s.pod, client.Load{To: s.to, Connections: 60, Rate: 500,
		Duration: 120 * time.Millisecond})
	if err != nil {
		return err
	}
	after, err := g.Requests(ctx)
	if err != nil {
		return err
	}

	if len(out.Servers) != len(testbed.Servers()) {
		return fmt.Errorf("answers from %v: want some from each of %d servers", out.Servers,
			len(testbed.Servers()))
	}
	if after-before < out.Requests {
		return fmt.Errorf("clients sent %d requests, but servers counted %d", out.Requests,
			after-before)
	}
	return nil
}
