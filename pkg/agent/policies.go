package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/internal/sysctl"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// liberalPath is the setting by which conntrack accepts segments outside the window that it knows.
const liberalPath = "netfilter/nf_conntrack_tcp_be_liberal"

// openPolicies makes the keeper of policies, where they are asked for.
func (a *Agent) openPolicies() {
	cfg := a.config()
	if cfg.Policy != config.PolicyKubernetes {
		return
	}
	o := keeper.Options{Node: cfg.Node, Paths: pod.DefaultPaths(), Log: a.log,
		AllowOwnNode: cfg.PolicyOwnNode == config.OwnNodeAllow, Denials: a.kube.Deny,
		Programmed: a.metrics.ObservePolicy}
	if links := a.links(); links != nil {
		links.Confine()
		o.FastPath = links
	}
	a.policies = keeper.New(o)
}

// beginPolicies puts in force what is known before any source has spoken. Where no policies are
// asked for, those of before are taken out of force: nobody would keep them.
func (a *Agent) beginPolicies() error {
	if a.policies == nil {
		was, err := keeper.TurnOff(pod.DefaultPaths())
		if err != nil {
			return fmt.Errorf("turn NetworkPolicy off: %w", err)
		}
		if was {
			a.log.Warn("NetworkPolicy is not enforced any more, as configured")
		}
		return nil
	}
	if err := a.policies.Begin(); err != nil {
		return fmt.Errorf("put NetworkPolicy in force: %w", err)
	}
	if a.config().Services.HostRouting != config.HostRoutingEBPF {
		return nil
	}

	// Pods change between the fast path, which conntrack does not see, and the kernel's. It would
	// take the windows of what they have open for wrong.
	if err := sysctl.Write(liberalPath, "1"); err != nil {
		return fmt.Errorf("let connections come back from the fast path: %w", err)
	}
	return nil
}

// runPolicies keeps policies in force.
func (a *Agent) runPolicies(ctx context.Context, g *errgroup.Group) {
	if a.policies == nil {
		return
	}
	g.Go(func() error {
		defer a.policies.Close()
		return a.policies.Run(ctx)
	})
	g.Go(func() error { return ignoreEnd(ctx, a.kube.RunPolicies(ctx, a.policies)) })
	g.Go(func() error { return ignoreEnd(ctx, a.kube.RunDenials(ctx)) })
	g.Go(func() error { return ignoreEnd(ctx, a.policies.LogDrops(ctx)) })
}

// tellPolicies tells the keeper of policies which addresses and prefixes nodes have, as they are
// believed.
func (a *Agent) tellPolicies(t cluster.Table) {
	if a.policies == nil {
		return
	}
	nodes := slices.Concat(t.Peers, t.Keyless)
	if t.Self != nil {
		nodes = append(nodes, *t.Self)
	}
	prefixes := make(map[string][]netip.Prefix, len(nodes))
	addrs := make(map[string][]netip.Addr, len(nodes))
	for _, n := range nodes {
		prefixes[n.Name], addrs[n.Name] = n.PodPrefixes, n.Addresses
	}
	a.policies.SetNodeAddrs(addrs)
	a.policies.SetPrefixes(prefixes)
}

// changedPolicies tells the keeper of policies what the kernel told.
func (a *Agent) changedPolicies(c hostnet.Change) {
	if a.policies == nil {
		return
	}
	if c.Policy {
		a.policies.TableChanged()
	}
	if c.AllPods || c.PodLinks || len(c.Pods) > 0 {
		a.policies.AttachmentsChanged()
	}
}

// policyStatus is what is shown of policies; nil where none are enforced.
func (a *Agent) policyStatus() (*telemetry.Policy, []string) {
	if a.policies == nil {
		return nil, nil
	}
	shown, problems := a.policies.Status(), a.policies.Problems()
	drops, err := a.policies.Drops()
	if err != nil {
		problems = append(problems, err.Error())
	}
	shown.Drops = drops
	return &shown, problems
}
