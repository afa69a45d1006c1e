package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

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
	options network.Options
	seconds int
	// noReference begins with Kubeveil.
	noReference bool
	// serviceProxy and hostRouting are as in vm.ClusterConfig.
	serviceProxy, hostRouting string
	// folder is for the machines.
	folder string
}

func clusterCommand() *cobra.Command {
	a := clusterArguments{options: network.Options{Choice: suite.Choice{Rounds: 5,
		Limit: 75 * time.Minute, Parts: network.Parts()}}}
	b := program.NewBench("cluster", clusterUsage, &a.options.Choice)
	b.Flags.IntSliceVar(&a.options.MTUs, "mtus", []int{8896, 1500},
		"`MTUs` of the underlay, the largest first")
	b.Flags.IntVar(&a.seconds, "seconds", 2,
		"duration of a TCP sample; a UDP rate takes half of it, at least a second, and a latency "+
			"half of a UDP rate or up to four times that")
	b.Flags.DurationVar(&a.options.Churn, "churn", time.Minute,
		"time in which pods are created and deleted; a negative time leaves that out")
	b.Flags.BoolVar(&a.noReference, "no-reference", false,
		"leave out the reference plugins and the time of the installation; saves some minutes")

	b.Flags.StringVar(&a.serviceProxy, "service-proxy", config.ServiceProxyNone,
		program.ServiceProxyUsage+"; with "+config.ServiceProxyEBPF+" write --no-reference")
	b.Flags.StringVar(&a.hostRouting, "host-routing", config.HostRoutingKernel,
		program.HostRoutingUsage)

	return b.Command("Measure two virtual machines against bare WireGuard and the clear network",
		func() (program.Run, error) {
			err := a.complete()
			return program.Within(a.options.Limit, b.Measure(
				func(ctx context.Context, folder string) (*report.Report, error) {
					a.folder = folder
					return measureCluster(ctx, a)
				})), err
		})
}

// complete checks the command line and derives what follows from it.
func (a *clusterArguments) complete() error {
	if a.seconds < 1 {
		return fmt.Errorf("--seconds %d: write at least 1", a.seconds)
	}
	a.options.TCP = time.Duration(a.seconds) * time.Second
	a.options.Probe = max(time.Second, (a.options.TCP / 2).Truncate(time.Second))
	a.options.RoundTrips = a.options.Probe / 2
	if err := checkMTUs(a.options.MTUs); err != nil {
		return err
	}
	if err := a.checkServices(); err != nil {
		return err
	}
	return a.options.Check()
}

// checkServices checks the flags about services.
func (a *clusterArguments) checkServices() error {
	if err := vm.CheckServiceProxy(a.serviceProxy); err != nil {
		return fmt.Errorf("--service-proxy %s: %w", a.serviceProxy, err)
	}
	if err := vm.CheckHostRouting(a.hostRouting, a.serviceProxy); err != nil {
		return fmt.Errorf("--host-routing %s: %w", a.hostRouting, err)
	}
	if a.serviceProxy == config.ServiceProxyEBPF && !a.noReference {
		return fmt.Errorf("--service-proxy %s: the reference network has no proxy of services: add "+
			"--no-reference", a.serviceProxy)
	}
	return nil
}

func measureCluster(ctx context.Context, a clusterArguments) (*report.Report, error) {
	log, closeLog, err := program.Log(a.folder, "bench-cluster.log")
	if err != nil {
		return nil, err
	}
	defer closeLog()
	say := a.options.Progress
	say("the machines take three minutes to begin with, then it is about %v",
		estimate(a.options))
	// The client libraries log each stream that ends.
	klog.SetSlogLogger(log)
	return onMachines(ctx, a, log, say)
}
