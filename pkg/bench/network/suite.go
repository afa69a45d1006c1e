package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Suite is the name of this suite in bench.Judge and the name of the folder of its results.
const Suite = "bench-cluster"

// tunnelPrefix is the prefix of the names of Kubeveil's tunnel devices.
const tunnelPrefix = abi.TunnelDevicePrefix

// suite is one run.
type suite struct {
	Options
	cluster *remote.Cluster
	ground  *ground
	wiring  *wiring
	runner  bench.Runner
	result  *bench.Result
	// at are the present MTUs.
	at mtus
	// noClear is the reason why there is no network in clear; "" means that there is one.
	noClear string
}

// Run measures the cluster and returns the report. The gates of the platform that the nodes report
// judge its result. It takes about o.Estimate. If a part fails or ctx ends, Run returns an error
// beside the report. The report then has what was measured until then and lists the part as
// skipped. The error also names what could not be removed from the cluster.
func Run(ctx context.Context, c *remote.Cluster, o Options) (rep *report.Report, err error) {
	o.setDefaults()
	s := &suite{Options: o, cluster: c, runner: bench.Runner{Rounds: o.Rounds, Seed: o.Seed,
		Progress: o.Progress}}
	s.Progress("about %v", o.Estimate().Round(time.Minute))
	if s.ground, err = newGround(ctx, c, o.Nodes); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.ground.close(context.WithoutCancel(ctx))) }()
	if err := s.begin(); err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	wrong := s.measure(ctx)
	gates, err := bench.Judge(s.result, Suite)
	if err != nil {
		return nil, err
	}
	s.result.Gates = gates
	return s.report(), wrong
}

// measure runs all parts. If one fails, the figures of all are kept.
func (s *suite) measure(ctx context.Context) error {
	var errs []error
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"plaintext", s.prove}, {"matrix", s.matrices}, {"guard", s.guardCost},
		{"link of limited rate", s.capped}, {"new pods", s.starts}, {"churn", s.churn}} {
		if ctx.Err() != nil {
			s.skip(part.name, "it was not begun: "+context.Cause(ctx).Error())
			continue
		}
		if err := part.run(ctx); err != nil {
			err = fmt.Errorf("%s: %w", part.name, err)
			if ctx.Err() != nil {
				err = errors.Join(context.Cause(ctx), err)
			}
			s.skip(part.name, "not all of it was measured: "+err.Error())
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// begin starts the result with the properties of the nodes.
func (s *suite) begin() (err error) {
	a, b := s.ground.client().platform, s.ground.server().platform
	for _, p := range s.ground.nodes {
		s.Progress("%s is %s (%s): %s, %s, %d CPUs, kernel %s", p.Name, p.platform.Name,
			p.platform.Why, p.platform.Machine, p.platform.Processor, p.platform.CPUs,
			p.platform.Kernel)
	}
	if a.Name != b.Name {
		return fmt.Errorf("%s is %s, %s is %s: choose two nodes of one kind",
			s.ground.client().Name, a.Name, s.ground.server().Name, b.Name)
	}
	if len(a.Tunnels) == 0 || len(b.Tunnels) == 0 {
		return fmt.Errorf("%s and %s have tunnels %v and %v: is Kubeveil installed and ready? "+
			"`kubectl -n kube-system get pods` shows it",
			s.ground.client().Name, s.ground.server().Name, a.Tunnels, b.Tunnels)
	}
	s.result, err = bench.New(a.Name, s.Root)
	if err != nil {
		return err
	}
	s.result.Kernel, s.result.CPUs = a.Kernel, a.CPUs
	return nil
}

// skip lists the quantities that are not measured.
func (s *suite) skip(name, reason string) {
	s.Progress("skipped: %s: %s", name, reason)
	s.result.Tests.Skipped = append(s.result.Tests.Skipped, bench.Skip{Name: name, Reason: reason})
}

// connect adds the pods' other interfaces and detects which of the paths exist.
func (s *suite) connect(ctx context.Context) (err error) {
	if s.wiring, err = s.ground.serve(ctx, s.Prefix); err != nil {
		return err
	}
	if s.at, err = s.ground.readMTU(ctx); err != nil {
		return err
	}
	if err := s.ground.wire(ctx, s.wiring, s.at); err != nil {
		return err
	}
	if s.wiring.noBare != "" {
		s.skip("bare WireGuard", "the nodes' kernels cannot: "+s.wiring.noBare)
	}

	if !s.ground.client().platform.KernelTunnels || !s.ground.server().platform.KernelTunnels {
		s.skip("ours by the kernel's WireGuard",
			"a node tunnels in userspace; ours is measured as it is")
	}

	for _, t := range s.targets() {
		err := s.reach(ctx, t)
		switch {
		case err == nil:
		case t.side == sideClear && ctx.Err() == nil:
			s.noClear = err.Error()
			s.skip("the network in clear",
				fmt.Sprintf("the network between the nodes does not carry addresses of %v "+
					"(docs/how-to/benchmark.md has the setting): %v", s.Prefix, err))
		default:
			return fmt.Errorf("%s: %w", t.side, err)
		}
	}

	return nil
}

// reachPatience bounds the first exchange: proxies learn of services at times of their own.
const reachPatience = 30 * time.Second

// reach waits until round trips to the target take the target's path.
func (s *suite) reach(ctx context.Context, t target) error {
	short := *s
	short.RoundTrips = 100 * time.Millisecond
	return remote.Until(ctx, fmt.Sprintf("%s to %s", t.side, t.addr), reachPatience,
		func(ctx context.Context) error {
			_, err := short.tripsTo(t)(ctx)
			return err
		})
}

// sides returns the existing sides, ours first.
func (s *suite) sides() []string {
	sides := []string{sideOurs, sideBare, sideClear}
	return slices.DeleteFunc(sides, func(side string) bool {
		return side == sideBare && s.wiring.noBare != "" || side == sideClear && s.noClear != ""
	})
}

// targets returns all destinations of all sides.
func (s *suite) targets() []target {
	var all []target
	for _, side := range s.sides() {
		all = append(all, s.podTarget(side), s.serviceTarget(side))
	}
	return all
}

func (s *suite) podTarget(side string) target {
	server := s.wiring.plans[1]
	switch side {
	case sideBare:
		return target{side, server.barePod, s.at.pod}
	case sideClear:
		return target{side, server.clearPod, s.at.underlay}
	}
	return target{sideOurs, s.ground.server().podAddr, s.at.pod}
}

func (s *suite) serviceTarget(side string) target {
	t := s.podTarget(side)
	t.addr = s.wiring.services[side]
	return t
}
