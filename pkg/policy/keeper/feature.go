package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Source is the API server as a Feature needs it. kube.Client implements it.
type Source interface {
	// RunPolicies passes policies, and the objects that they depend on, to sink until ctx ends.
	RunPolicies(ctx context.Context, sink policy.Sink) error
	// ListPolicies returns the revisions of the policies that the API server has now.
	ListPolicies(ctx context.Context) (policy.Revisions, error)
	// ReadPolicies reads policies to try, without the API server.
	ReadPolicies(w policy.Written) (policy.Policies, error)
	// ReadHanded reads the objects of a cluster that veilctl handed over, without the API server.
	ReadHanded(h policy.Handed, node string) (policy.Objects, error)
	// Deny takes the policies that deny more than is written, for which RunDenials creates Events
	// until ctx ends. Deny returns at once.
	Deny(denials []policy.Denial)
	RunDenials(ctx context.Context) error
}

// FeatureOptions are the settings and dependencies of a Feature.
type FeatureOptions struct {
	Config config.Config
	// Source must be set.
	Source Source
	Paths  pod.Paths
	// Links have a fast path past netfilter. Confine closes it to all pods that Move did not name.
	// Nil means that there is no fast path.
	Links interface {
		FastPath
		Confine()
	}
	// Programmed receives the time from a change of the source until it is in force.
	Programmed func(time.Duration)
	// Dropped, Sampled and Drops are fields of PolicyConfig.
	Dropped func(nflog.Packet, telemetry.DroppedPacket)
	Sampled func(error)
	Drops   func() []telemetry.DroppedPacket
	Log     *slog.Logger
}

// Feature is NetworkPolicy as the agent drives it. Make it with NewFeature.
type Feature struct {
	feature.None
	o      FeatureOptions
	keeper *Keeper // nil if the configuration does not turn policies on
	off    off
}

// NewFeature returns a Feature. If policies are on, it confines the fast path; it changes nothing
// else.
func NewFeature(o FeatureOptions) *Feature {
	f := &Feature{o: o}
	if o.Config.Policy != config.PolicyKubernetes {
		f.off.judge = known.New(nil)
		return f
	}
	k := PolicyConfig{Node: o.Config.Node, Paths: o.Paths, Log: o.Log,
		Policy: policyOptions(o.Config), Denials: o.Source.Deny, Programmed: o.Programmed,
		Dropped: o.Dropped, Sampled: o.Sampled, Drops: o.Drops}
	if o.Links != nil {
		o.Links.Confine()
		k.FastPath = o.Links
	}
	f.keeper = New(k)
	return f
}

// policyOptions returns what the configuration decides about policies.
func policyOptions(c config.Config) policy.Options {
	return policy.Options{AllowOwnNode: c.PolicyOwnNode == config.OwnNodeAllow}
}

// Begin puts in force what is known before any source has sent anything. If the configuration has
// policies off, it removes what an earlier veild left in force, since no process maintains it.
func (f *Feature) Begin() error {
	if f.keeper == nil {
		was, err := TurnOff(f.o.Paths)
		if err != nil {
			return fmt.Errorf("turn NetworkPolicy off: %w", err)
		}
		if was {
			f.o.Log.Warn("NetworkPolicy is no longer enforced: the configuration has policy: none")
		}
		return nil
	}
	if err := f.keeper.Begin(); err != nil {
		return fmt.Errorf("put NetworkPolicy in force: %w", err)
	}
	return nil
}

// Run keeps policies in force until ctx ends.
func (f *Feature) Run(ctx context.Context) error {
	if f.keeper == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer f.keeper.Close()
		return f.keeper.Run(ctx)
	})
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return f.o.Source.RunPolicies(ctx, f.keeper) },
		f.o.Source.RunDenials, f.keeper.LogDrops,
	} {
		g.Go(func() error { return feature.IgnoreEnd(ctx, run(ctx)) })
	}
	return g.Wait()
}

// Turn passes the addresses and prefixes of the node table to the Keeper. Without a Keeper, it
// stores them.
func (f *Feature) Turn(t feature.Turn) error {
	if !t.Complete || t.SamePlaces {
		return nil
	}
	nodes := slices.Concat(t.Table.Peers, t.Table.Keyless)
	if t.Table.Self != nil {
		nodes = append(nodes, *t.Table.Self)
	}
	prefixes := make(map[string][]netip.Prefix, len(nodes))
	addrs := make(map[string][]netip.Addr, len(nodes))
	for _, n := range nodes {
		prefixes[n.Name], addrs[n.Name] = n.PodPrefixes, n.Addresses
	}
	if f.keeper == nil {
		f.off.set(addrs, prefixes)
		return nil
	}
	f.keeper.SetNodeAddrs(addrs)
	f.keeper.SetPrefixes(prefixes)
	return nil
}

// KernelChanged makes the Keeper compare the parts of the kernel that may have changed.
func (f *Feature) KernelChanged(c feature.KernelChange) {
	if f.keeper == nil {
		return
	}
	if c.PolicyTable {
		f.keeper.TableChanged()
	}
	if c.Pods {
		f.keeper.AttachmentsChanged()
	}
}

// Status adds the status of policies and their problems. It adds nothing where none are enforced.
func (f *Feature) Status(s *telemetry.Status) {
	if f.keeper == nil {
		return
	}
	shown := f.keeper.Status()
	s.Problems = append(s.Problems, f.keeper.Problems()...)
	drops, err := f.keeper.Drops()
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	shown.Drops = drops
	s.Policy = &shown
}
