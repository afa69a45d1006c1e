package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/network"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Config configures a run.
type Config struct {
	network.Options
	// NoReference begins with Kubeveil, without the reference network.
	NoReference bool
	// ServiceProxy and HostRouting are as in vm.ClusterConfig.
	ServiceProxy, HostRouting string
	// Dir is the folder for the machines.
	Dir string
	Log *slog.Logger
}

// Run makes the machines, measures the reference network first, then Kubeveil, and ends the
// machines.
func Run(ctx context.Context, a Config) (rep *report.Report, err error) {
	o, say := a.Options, a.Progress
	say("the machines take three minutes to begin with, then it is about %v", estimate(o))
	// The client libraries log each stream that ends.
	klog.SetSlogLogger(a.Log)
	c, err := vm.New(ctx, vm.ClusterConfig{Nodes: 2, UnderlayMTU: o.MTUs[0], NoVeil: !a.NoReference,
		ServiceProxy: a.ServiceProxy, HostRouting: a.HostRouting, Dir: a.Dir, Log: a.Log})
	if err != nil {
		return nil, err
	}
	defer func() {
		_, end := c.Close()
		err = errors.Join(err, end)
	}()

	say("machines are up (%s)", c.Accel)
	for _, m := range c.Machines {
		o.Nodes = append(o.Nodes, m.Name)
	}

	access := remote.Access{Kubeconfig: c.Kubeconfig()}
	k, err := remote.Connect(ctx, access, remote.ConnectConfig{Log: a.Log})
	if err != nil {
		return nil, err
	}

	var control uint64
	if !a.NoReference {
		if control, err = reference(ctx, c, k, &o, say); err != nil {
			return nil, fmt.Errorf("reference network: %w", err)
		}
		began := time.Now()
		if err := c.InstallVeil(ctx); err != nil {
			return nil, err
		}
		o.Ready = []float64{time.Since(began).Seconds()}
		say("Kubeveil is installed, nodes are Ready %.0f s after apply", o.Ready[0])
	}

	rep, err = suiteOn(ctx, c, k, o, control)
	if rep != nil {
		rep.Notes = append(rep.Notes, fmt.Sprintf("serviceProxy %s, hostRouting %s.",
			a.ServiceProxy, a.HostRouting))
	}
	return rep, err
}

func estimate(o network.Options) time.Duration {
	// The link can be limited here.
	o.Cap = func(context.Context, float64) error { return nil }
	return o.Estimate().Round(time.Minute)
}

// suiteOn runs the suite with what only machines can do. control is how many frames with plaintext
// the oracle has seen before.
func suiteOn(ctx context.Context, c *vm.Cluster, k *remote.Cluster, o network.Options,
	control uint64) (*report.Report, error) {
	if err := calm(ctx, c); err != nil {
		return nil, err
	}
	o.SetMTU = func(ctx context.Context, mtu int) error {
		for _, m := range c.Machines {
			if _, err := m.Exec(ctx, fmt.Sprintf("ip link set eth0 mtu %d", mtu)); err != nil {
				return err
			}
		}
		return nil
	}
	o.Cap = func(ctx context.Context, mbps float64) error { return limitLinks(ctx, c, mbps) }
	o.Wire = func(context.Context) (bench.Leaks, error) {
		// It costs the processors that are to be measured, so it ends here.
		seen, err := c.Lab.Oracle.Stop()
		if seen.Dropped > 0 {
			err = errors.Join(err, fmt.Errorf(
				"the oracle on the wire missed %d frames, so nothing is proven", seen.Dropped))
		}
		return bench.Leaks{Frames: seen.Frames, Plaintext: seen.Plaintext,
			ControlPlaintext: control}, err
	}
	return network.Run(ctx, k, o)
}

// reference returns the machines the reference plugins with plain routes, measures how soon their
// pods talk, takes them away again, and returns how many frames with plaintext the oracle saw of
// it.
func reference(ctx context.Context, c *vm.Cluster, k *remote.Cluster, o *network.Options,
	say func(string, ...any)) (control uint64, err error) {
	// Nothing but the pods that are timed is to start on it.
	names := o.Nodes
	if _, err := c.Kubectl(ctx, append([]string{"cordon"}, names...)...); err != nil {
		return 0, err
	}

	say("reference network: ptp and host-local with plain routes")
	if err := c.InstallClear(ctx); err != nil {
		return 0, err
	}
	if o.Reference, err = testbed.FirstBytes(ctx, k, o.Nodes); err != nil {
		return 0, err
	}

	say("reference network: new pods to their first bytes after %.1f s",
		bench.Quantile(slices.Clone(o.Reference), 0.5))
	if err := c.RemoveClear(ctx); err != nil {
		return 0, err
	}
	seen, err := c.Lab.Oracle.Take()
	if err == nil && seen.Plaintext == 0 {
		err = fmt.Errorf("the oracle saw no plaintext in %d frames of it: it cannot see",
			seen.Frames)
	}
	if err != nil {
		return 0, err
	}

	// The kubelets must have reported that there is no network. Otherwise nodes count as Ready
	// before Kubeveil runs.
	err = remote.Until(ctx, "nodes are not Ready without a network", 2*time.Minute,
		func(ctx context.Context) error {
			nodes, err := k.Nodes(ctx)
			if err != nil {
				return err
			}
			for _, n := range nodes {
				if n.Ready {
					return fmt.Errorf("node %s is still Ready", n.Name)
				}
			}
			return nil
		})
	if err != nil {
		return 0, err
	}

	_, err = c.Kubectl(ctx, append([]string{"uncordon"}, names...)...)
	return seen.Plaintext, err
}

// calm leaves kubelet and runtime only the CPU time that others do not use. It enlarges socket
// buffers for the pauses of an emulated reader. Otherwise the kubelet's bursts are measured.
func calm(ctx context.Context, c *vm.Cluster) error {
	for _, m := range c.Machines {
		if _, err := m.Exec(ctx, "systemctl set-property --runtime system.slice CPUWeight=5 && "+
			"sysctl -qw net.core.rmem_max=4194304 net.core.rmem_default=4194304"); err != nil {
			return err
		}
	}
	return nil
}

// limitLinks limits every machine's port, from the bridge to the machine; 0 takes the limits away.
func limitLinks(ctx context.Context, c *vm.Cluster, mbps float64) error {
	// A queue of 200 ms, because round trips of emulated machines take tens; and at least two
	// frames in a burst.
	burst := max(2*9018, int(mbps*1e6/8*0.002))
	for _, m := range c.Machines {
		line := fmt.Sprintf("tc qdisc replace dev %s root tbf rate %.0fkbit burst %d latency 200ms",
			m.Name, mbps*1000, burst)
		if mbps == 0 {
			line = fmt.Sprintf("tc qdisc del dev %s root || true", m.Name)
		}
		if _, err := c.Lab.Bridge().Exec(ctx, "sh", "-c", line); err != nil {
			return fmt.Errorf("limit the link of %s: %w", m.Name, err)
		}
	}
	return nil
}
