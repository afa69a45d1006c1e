package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/cluster"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench/network"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/config"
)

const clusterUsage = `Measure Kubeveil, bare WireGuard and the clear network on two virtual
machines: pod to pod and pod to service, TCP, UDP, latency and CPU, at MTU 8896 and 1500 and over a
link of limited rate.

Usage: kvlab bench cluster [flags]

Examples:
  kvlab bench cluster                           all parts, about an hour on two cores
  kvlab bench cluster --rounds 1 --seconds 1    a quick look at all parts, about 13 minutes
  kvlab bench cluster --mtus 1500 --churn -1s   one MTU, no churn
  kvlab bench cluster --service-proxy ebpf --host-routing ebpf --no-reference
      without kube-proxy, by the fast path

Flags:
`

// clusterArguments are the values of the command line.
type clusterArguments struct {
	cluster.Config
	seconds int
}

func clusterCommand() *cobra.Command {
	a := clusterArguments{}
	a.Choice = suite.Choice{Rounds: 5, Limit: 75 * time.Minute, Parts: network.Parts()}
	b := program.NewBench("cluster", clusterUsage, &a.Choice)
	b.Flags.IntSliceVar(&a.MTUs, "mtus", []int{8896, 1500},
		"`MTUs` of the underlay, the largest first")
	b.Flags.IntVar(&a.seconds, "seconds", 2,
		"duration of a TCP sample; a UDP rate takes half of it, at least a second, and a latency "+
			"half of a UDP rate or up to four times that")
	b.Flags.DurationVar(&a.Churn, "churn", time.Minute,
		"time in which pods are created and deleted; a negative time leaves that out")
	b.Flags.BoolVar(&a.NoReference, "no-reference", false,
		"leave out the reference plugins and the time of the installation; saves some minutes")

	b.Flags.StringVar(&a.ServiceProxy, "service-proxy", config.ServiceProxyNone,
		program.ServiceProxyUsage+"; with "+config.ServiceProxyEBPF+" write --no-reference")
	b.Flags.StringVar(&a.HostRouting, "host-routing", config.HostRoutingKernel,
		program.HostRoutingUsage)

	return b.Command("Measure two virtual machines against bare WireGuard and the clear network",
		func() (program.Run, error) {
			err := a.complete()
			return program.Within(a.Limit, b.Measure(
				func(ctx context.Context, folder string) (*report.Report, error) {
					return measureCluster(ctx, folder, a.Config)
				})), err
		})
}

// complete checks the command line and derives what follows from it.
func (a *clusterArguments) complete() error {
	if a.seconds < 1 {
		return fmt.Errorf("--seconds %d: write at least 1", a.seconds)
	}
	a.TCP = time.Duration(a.seconds) * time.Second
	a.Probe = max(time.Second, (a.TCP / 2).Truncate(time.Second))
	a.RoundTrips = a.Probe / 2
	if err := checkMTUs(a.MTUs); err != nil {
		return err
	}
	if err := a.checkServices(); err != nil {
		return err
	}
	return a.Check()
}

// checkServices checks the flags about services.
func (a clusterArguments) checkServices() error {
	if err := vm.CheckServiceProxy(a.ServiceProxy); err != nil {
		return fmt.Errorf("--service-proxy %s: %w", a.ServiceProxy, err)
	}
	if err := vm.CheckHostRouting(a.HostRouting, a.ServiceProxy); err != nil {
		return fmt.Errorf("--host-routing %s: %w", a.HostRouting, err)
	}
	if a.ServiceProxy == config.ServiceProxyEBPF && !a.NoReference {
		return fmt.Errorf("--service-proxy %s: the reference network has no proxy of services: add "+
			"--no-reference", a.ServiceProxy)
	}
	return nil
}

// smallestMTU is the smallest MTU of IPv6.
const smallestMTU = 1280

// checkMTUs refuses MTUs that would have to grow: a machine's link cannot have more than it began
// with.
func checkMTUs(mtus []int) error {
	if len(mtus) == 0 {
		return errors.New("--mtus: write at least one")
	}
	for i, n := range mtus {
		if n < smallestMTU || n > 9000 {
			return fmt.Errorf("--mtus %v: %d is not an MTU from %d to 9000", mtus, n, smallestMTU)
		}
		if i > 0 && n >= mtus[i-1] {
			return fmt.Errorf("--mtus %v: write the largest first", mtus)
		}
	}
	return nil
}

func measureCluster(ctx context.Context, folder string, c cluster.Config) (*report.Report, error) {
	log, closeLog, err := program.Log(folder, "bench-cluster.log")
	if err != nil {
		return nil, err
	}
	defer closeLog()
	c.Dir, c.Log = filepath.Join(folder, "machines"), log
	return cluster.Run(ctx, c)
}
