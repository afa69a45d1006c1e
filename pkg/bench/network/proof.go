package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// proofTrips is the number of round trips to each address while the nodes' links are watched.
const proofTrips = 200

// prove watches the links of both nodes while the pods exchange messages that hold a canary.
// Through Kubeveil the links may show no plaintext; on the network in clear they must show the
// canary.
func (s *run) prove(ctx context.Context) (err error) {
	defer func() {
		// Drop the counts of an incomplete measurement, because they prove nothing.
		if err != nil {
			s.Result.Leaks = nil
		}
	}()
	ours, err := s.watched(ctx, sideOurs)
	if err != nil {
		return err
	}

	s.Result.Leaks = &bench.Leaks{Frames: ours.Frames, Plaintext: ours.Plaintext}
	if s.noClear == "" {
		control, err := s.watched(ctx, sideClear)
		if err != nil {
			return err
		}
		s.Result.Leaks.ControlPlaintext = control.Plaintext
	}

	s.Progress("on the nodes' links: %d frames, %d with plaintext by ours, %d in clear",
		ours.Frames, ours.Plaintext, s.Result.Leaks.ControlPlaintext)
	for _, e := range ours.Examples {
		s.Progress("LEAK %s", e)
	}

	if s.Wire == nil {
		return nil
	}
	outside, err := s.Wire(ctx)
	if err != nil {
		return err
	}

	s.Progress("on the wire outside of the nodes: %d frames, %d with plaintext, %d in the control",
		outside.Frames, outside.Plaintext, outside.ControlPlaintext)
	s.Result.Leaks.Frames += outside.Frames
	s.Result.Leaks.Plaintext += outside.Plaintext
	s.Result.Leaks.ControlPlaintext += outside.ControlPlaintext
	return nil
}

// watched exchanges messages through a side while the oracles of both nodes watch, and returns the
// sum of what they saw. Each call has its own canary.
func (s *run) watched(ctx context.Context, side string) (sum session.Judgement, err error) {
	canary := remote.NewCanary()
	ranges, nodes, err := s.known(ctx)
	if err != nil {
		return sum, err
	}

	err = s.bed.Both(func(_ int, p *testbed.Place) error {
		return p.OnNode.Call(ctx, session.VerbWatch,
			session.Watch{Link: p.Platform.Underlay, Ranges: ranges, Nodes: nodes, Canary: canary},
			nil)
	})
	if err != nil {
		return sum, err
	}

	exchange := session.RoundTrips{Size: 400, Count: proofTrips, Most: reachPatience, Fill: canary}
	for _, t := range []target{s.podTarget(side), s.serviceTarget(side)} {
		exchange.To = append(exchange.To, netip.AddrPortFrom(t.addr, session.RoundTripsPort))
	}

	errs := []error{s.bed.Client().InPod.Call(ctx, session.VerbRoundTrips, exchange, nil)}
	var seen [2]session.Judgement
	errs = append(errs, s.bed.Both(func(i int, p *testbed.Place) error {
		return p.OnNode.Call(ctx, session.VerbJudge, struct{}{}, &seen[i])
	}))
	if err := errors.Join(errs...); err != nil {
		return sum, fmt.Errorf("watch the links, %s: %w", side, err)
	}

	for i, j := range seen {
		if j.Dropped > 0 || j.Frames == 0 {
			return sum, fmt.Errorf("watch %s of %s: %d frames seen and %d missed, so nothing "+
				"is proven", s.bed.Nodes[i].Platform.Underlay, s.bed.Nodes[i].Name, j.Frames,
				j.Dropped)
		}
		sum.Frames += j.Frames
		sum.Plaintext += j.Plaintext
		sum.Examples = append(sum.Examples, j.Examples...)
	}

	return sum, nil
}

// known returns the cluster's pod ranges and service addresses, which must not appear on the links,
// and the addresses of its nodes.
func (s *run) known(ctx context.Context) (ranges []netip.Prefix, nodes []netip.Addr, err error) {
	all, err := s.cluster.Nodes(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range all {
		ranges = append(ranges, n.PodPrefixes...)
		nodes = append(nodes, n.Addrs...)
	}
	for _, addr := range s.wiring.Services {
		ranges = append(ranges, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return ranges, nodes, nil
}
