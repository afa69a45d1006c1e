package network

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Suite is the name of this suite in bench.Judge and the name of the folder of its results.
const Suite = "bench-cluster"

// tunnelPrefix is the prefix of the names of Kubeveil's tunnel devices.
const tunnelPrefix = abi.TunnelDevicePrefix

// benchmark has the parts in the order in which they run. Whole is set because the names of cases
// do not begin with the name of a part.
var benchmark = suite.Suite[*run]{Name: Suite, Whole: true, Elsewhere: true,
	Parts: []suite.Part[*run]{
		{Name: "plaintext", Run: (*run).prove},
		{Name: "matrix", Run: (*run).matrices},
		{Name: "guard", Run: (*run).guardCost},
		{Name: "capped", Run: (*run).capped},
		{Name: "starts", Run: (*run).starts},
		{Name: "churn", Run: (*run).churn},
	}}

// Parts returns the names of the parts in the order in which they run.
func Parts() []string { return benchmark.Names() }

// run is one run of the suite.
type run struct {
	Options
	*suite.Run
	cluster *remote.Cluster
	bed     *testbed.Bed
	wiring  *testbed.Wiring
	// at are the present MTUs.
	at testbed.MTUs
	// noClear is the reason why there is no network in clear; "" means that there is one.
	noClear string
}

// Run measures the cluster and returns the report. The result is judged by the gates of the
// platform that the nodes report. Run takes about o.Estimate. If a part fails or ctx ends, Run
// returns an error beside the report. The report then has what was measured and lists the part as
// skipped. The error also names what could not be removed from the cluster.
func Run(ctx context.Context, c *remote.Cluster, o Options) (*report.Report, error) {
	o.setDefaults()
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, r *suite.Run) (*run, error) {
		s := &run{Options: o, Run: r, cluster: c}
		s.Labels = labels()
		s.Progress("about %v", o.Estimate().Round(time.Minute))
		var err error
		if s.bed, err = testbed.New(ctx, c, o.Nodes); err != nil {
			return s, err
		}
		if err := s.begin(); err != nil {
			return s, err
		}
		return s, s.connect(ctx)
	})
}

// Close removes what the run has made on the cluster.
func (s *run) Close() error {
	if s.bed == nil {
		return nil
	}
	return s.bed.Close(context.Background())
}

// begin starts the result with the properties of the nodes.
func (s *run) begin() error {
	a, b := s.bed.Client().Platform, s.bed.Server().Platform
	for _, p := range s.bed.Nodes {
		s.Progress("%s is %s (%s): %s, %s, %d CPUs, kernel %s", p.Name, p.Platform.Name,
			p.Platform.Why, p.Platform.Machine, p.Platform.Processor, p.Platform.CPUs,
			p.Platform.Kernel)
	}
	if a.Name != b.Name {
		return fmt.Errorf("%s is %s, %s is %s: choose two nodes of one kind",
			s.bed.Client().Name, a.Name, s.bed.Server().Name, b.Name)
	}
	if len(a.Tunnels) == 0 || len(b.Tunnels) == 0 {
		return fmt.Errorf("%s and %s have tunnels %v and %v: is Kubeveil installed and ready? "+
			"`kubectl -n kube-system get pods` shows it",
			s.bed.Client().Name, s.bed.Server().Name, a.Tunnels, b.Tunnels)
	}
	if err := s.On(a.Name); err != nil {
		return err
	}
	s.Result.Kernel, s.Result.CPUs = a.Kernel, a.CPUs
	return nil
}

// connect makes the services and the pods' other interfaces, and detects which paths exist.
func (s *run) connect(ctx context.Context) (err error) {
	if s.wiring, err = s.bed.Serve(ctx, s.Prefix); err != nil {
		return err
	}
	if s.at, err = s.bed.ReadMTU(ctx); err != nil {
		return err
	}
	if err := s.bed.Wire(ctx, s.wiring, s.at); err != nil {
		return err
	}
	if s.wiring.NoBare != "" {
		s.Skip("bare WireGuard", "the nodes' kernels cannot: "+s.wiring.NoBare)
	}

	if !s.bed.Client().Platform.KernelTunnels || !s.bed.Server().Platform.KernelTunnels {
		s.Skip("ours by the kernel's WireGuard",
			"a node tunnels in userspace; ours is measured as it is")
	}

	for _, t := range s.targets() {
		err := s.reach(ctx, t)
		switch {
		case err == nil:
		case t.side == sideClear && ctx.Err() == nil:
			s.noClear = err.Error()
			s.Skip("the network in clear",
				fmt.Sprintf("the network between the nodes does not carry addresses of %v "+
					"(docs/how-to/benchmark.md has the setting): %v", s.Prefix, err))
		default:
			return fmt.Errorf("%s: %w", t.side, err)
		}
	}

	return nil
}

// reachPatience bounds the wait for the first round trip to a target. A service works only after
// the node's service proxy has programmed it.
const reachPatience = 30 * time.Second

// reach waits until round trips to the target take the target's path.
func (s *run) reach(ctx context.Context, t target) error {
	short := *s
	short.RoundTrips = 100 * time.Millisecond
	return remote.Until(ctx, fmt.Sprintf("%s to %s", t.side, t.addr), reachPatience,
		func(ctx context.Context) error {
			_, err := short.tripsTo(t)(ctx)
			return err
		})
}

// sides returns the existing sides, ours first.
func (s *run) sides() []string {
	sides := []string{sideOurs, sideBare, sideClear}
	return slices.DeleteFunc(sides, func(side string) bool {
		return side == sideBare && s.wiring.NoBare != "" || side == sideClear && s.noClear != ""
	})
}

// targets returns the pod target and the service target of each side.
func (s *run) targets() []target {
	var all []target
	for _, side := range s.sides() {
		all = append(all, s.podTarget(side), s.serviceTarget(side))
	}
	return all
}

func (s *run) podTarget(side string) target {
	server := s.wiring.Plans[1]
	switch side {
	case sideBare:
		return target{side, server.BarePod, s.at.Pod}
	case sideClear:
		return target{side, server.ClearPod, s.at.Underlay}
	}
	return target{sideOurs, s.bed.Server().PodAddr, s.at.Pod}
}

func (s *run) serviceTarget(side string) target {
	t := s.podTarget(side)
	t.addr = s.wiring.Services[side]
	return t
}
