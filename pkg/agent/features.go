package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/conntrack"
	"github.com/kubeveil/kubeveil/pkg/drop"
	exports "github.com/kubeveil/kubeveil/pkg/export/keeper"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/flow"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	policies "github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	services "github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/site/witness"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// openFeatures makes the list of features, in the order in which they begin. A new feature is one
// more entry.
func (a *Agent) openFeatures() error {
	cfg, paths := a.config(), a.pods.Paths()
	have, err := a.guard.Read()
	if err != nil {
		return err
	}

	s, err := services.Open(services.FeatureOptions{Config: cfg, Source: a.kube, Paths: paths,
		Last: a.view.Load().lastGood, Closed: have.VIPs, StopFlows: a.host.StopFlows, Changed: a.poke,
		Observe: a.metrics.ObserveProgramming, Log: a.log})
	if err != nil {
		return err
	}
	limit := conntrack.NewFeature(cfg, paths, a.log)
	d := drop.NewFeature(drop.FeatureConfig{Reasons: dropReasons(),
		Counters: sum(a.guard.Counters, nftables.Drops, s.Drops, limit.Drops),
		Tunnels:  a.tunnelDrops, Ring: a.guard.Samples(), Paths: paths, Log: a.log})
	p := policies.FeatureOptions{Config: cfg, Source: a.kube, Paths: paths,
		Programmed: a.metrics.ObservePolicy, Dropped: d.Sampled, Sampled: d.PoliciesSampled,
		Drops: d.Kept, Log: a.log}
	e := exports.FeatureOptions{Config: cfg, Paths: paths, Changed: a.poke, Log: a.log}
	if a.kube != nil {
		e.Source = a.kube
	}
	connections := flow.FeatureConfig{Config: cfg, Paths: paths, Drops: d.Kept,
		Guard: a.guardStatus, Tunnels: a.tunnelStatus}
	if links := s.Links(); links != nil {
		p.Links, connections.Services, connections.ServiceAddrs = links, s.EachFlow, s.Outside
		connections.Opened = links.Opened
	}

	exported := exports.NewFeature(e)
	a.openedInForce = exported.InForce
	a.features = []feature.Feature{
		d,
		policies.NewFeature(p),
		s,
		limit,
		flow.NewFeature(connections),
		exported,
		witness.NewFeature(cfg, a.poke, a.log),
	}
	return nil
}

// dropReasons returns the names of the reasons for which packets are sampled.
func dropReasons() (names []string) {
	for _, r := range guard.Reasons() {
		names = append(names, r.Name)
	}
	return slices.Concat(names, nftables.DropReasons(), bpfmaps.DropReasons(),
		[]string{conntrack.DropReason, conntrack.SiteDropReason})
}

// sum returns a function that merges the results of counters. No two of them have a name in common.
func sum(counters ...func() (map[string]uint64, error)) func() (map[string]uint64, error) {
	return func() (map[string]uint64, error) {
		all := map[string]uint64{}
		for _, read := range counters {
			counts, err := read()
			if err != nil {
				return nil, err
			}
			maps.Copy(all, counts)
		}
		return all, nil
	}
}

// beginFeatures calls Begin of all features, before the source has sent a state.
func (a *Agent) beginFeatures() error {
	for _, f := range a.features {
		if err := f.Begin(); err != nil {
			return err
		}
	}
	return nil
}

// runFeatures keeps features in force until ctx ends.
func (a *Agent) runFeatures(ctx context.Context, g *errgroup.Group) {
	for _, f := range a.features {
		g.Go(func() error { return feature.IgnoreEnd(ctx, f.Run(ctx)) })
	}
}

// closeFeatures closes features once nothing uses them any more.
func (a *Agent) closeFeatures() (err error) {
	for _, f := range a.features {
		err = errors.Join(err, f.Close())
	}
	return err
}

// closedByFeatures returns the addresses that the guard blocks for features.
func (a *Agent) closedByFeatures() (addrs []netip.Addr) {
	for _, f := range a.features {
		addrs = append(addrs, f.Closed()...)
	}
	return addrs
}

// openedByFeatures returns the exported endpoints of this node. At most one feature has any.
func (a *Agent) openedByFeatures() (all []cluster.Opening) {
	for _, f := range a.features {
		if opened := f.Opened(); len(opened) > 0 {
			all = opened
		}
	}
	return all
}

// remoteOfFeatures returns the addresses of other clusters that features use, sorted. At most one
// feature has any.
func (a *Agent) remoteOfFeatures() (all []netip.Addr) {
	for _, f := range a.features {
		if remote := f.Remote(); len(remote) > 0 {
			all = remote
		}
	}
	return all
}

// turnFeatures passes what this turn believes to features. Their errors become notes of d.
func (l *loop) turnFeatures(in plan.Inputs, d *plan.Decision) {
	t := feature.Turn{Table: in.Table, Complete: in.Complete,
		SamePlaces: l.planner.SamePlaces(in.Table) && l.placed, LinkAddrs: l.underlay.Addrs,
		Assigned: l.underlay.Assigned, Certain: l.seen.underlay, PodPrefixes: d.PodPrefixes,
		SelfAddrs: d.Host.SelfAddrs, Dead: l.reaches.dead(in.Table.Peers)}
	l.placed = in.Complete
	if problem := l.reaches.problem(); problem != "" {
		d.Notes = append(d.Notes, problem)
	}
	for _, f := range l.features {
		if err := f.Turn(t); err != nil {
			d.Notes = append(d.Notes, err.Error())
			l.placed = false
		}
	}
}

// changedFeatures passes a notification of the kernel to features.
func (a *Agent) changedFeatures(c watch.Change) {
	k := feature.KernelChange{PolicyTable: c.Policy, Filters: c.Filters,
		Pods: c.AllPods || c.PodLinks || len(c.Pods) > 0}
	if k == (feature.KernelChange{}) {
		return
	}
	for _, f := range a.features {
		f.KernelChanged(k)
	}
}

// pages returns all pages of the admin socket except the status.
func (a *Agent) pages() map[string]admin.Page {
	all := map[string]admin.Page{}
	for _, f := range a.features {
		maps.Copy(all, f.Pages())
	}
	return all
}
