package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// turn runs one turn of the loop: it gathers inputs, decides, and applies the decision. It applies
// as much as it can, and returns the errors of the rest.
func (l *loop) turn(ctx context.Context) error {
	in, refusals, err := l.gather()
	if err != nil {
		return l.finish(in, l.last, l.refusals, err)
	}

	if in.Complete {
		if err := l.recall(&in); err != nil {
			// Features work also if the routes cannot be read.
			d := l.planner.Decide(in)
			l.turnFeatures(in, &d)
			return l.finish(in, l.last, l.refusals, err)
		}
	}

	in, d := l.flap.Hold(time.Now(), in, l.planner.Decide(in))
	l.turnFeatures(in, &d)
	otherErr := l.shutForOtherCNI(in.Config.CNI.ConfDir, &d)
	if !in.Complete {
		// A restarted veild that does not know its peers yet must not remove them.
		err = errors.Join(l.base(d), otherErr, l.shutForLinks(&d))
		return l.finish(in, d, refusals, err)
	}

	err = errors.Join(l.apply(ctx, in, d), otherErr, l.shutForLinks(&d))
	if err == nil {
		l.provePassage(ctx, &d)
	}
	if l.seen.guard != nil {
		l.pods.Begin(d.PodMTU)
	}

	return l.finish(in, d, refusals, err)
}

// gather collects the inputs of one turn. They do not change during the turn.
func (l *loop) gather() (plan.Inputs, []cluster.Refusal, error) {
	var told news
	l.change(func(v *view) { told, v.unread = v.news, time.Time{} })
	in := plan.Inputs{Config: told.cfg, Key: l.key, PathMTU: told.pathMTU, Since: told.unread,
		LastSelf: l.last.Self, LastMTU: l.last.PodMTU}
	state, lastGood := told.state, l.lastGood
	in.ClockNote = l.checkClock(&in)

	in.VIPs, in.Openings = l.closedByFeatures(), l.openedByFeatures()
	in.Complete, in.Synced = state.Synced || lastGood != nil, state.Synced
	link, err := l.readUnderlay(lastGood)
	if err != nil && !errors.Is(err, underlay.ErrNone) {
		return in, nil, err
	}
	in.UnderlayMTU = link.MTU
	if in.Config.MTU > 0 {
		in.UnderlayMTU = in.Config.MTU
	}
	in.WideMTU = node.WideMTU(in.Config.MTU, link)
	in.Overlaps = node.Overlaps(in.Config, link.Networks)
	in.LocalAddrs, in.OtherAddrs = link.Addrs, link.Assigned
	var refusals []cluster.Refusal
	rules := in.Config.Rules(link.Gateways)
	added, problems := cluster.AddedRanges(rules, state, lastGood)
	rules.ServiceRanges = slices.Concat(rules.ServiceRanges, added)
	in.Table, refusals = l.resolver.Resolve(rules,
		withOwnKey(state, in.Config.Node, in.Key.Public()), lastGood)
	l.metrics.ObserveDecided(l.resolver.Decided())
	in.Table.ServiceRanges, in.RangeProblems = added, problems
	if !state.Synced {
		have, err := l.guard.Read()
		if err != nil {
			return in, nil, err
		}
		in.Table.NodeAddrs = union(in.Table.NodeAddrs, have.Nodes)
	}
	return in, refusals, nil
}

// union returns the addresses of the table and of the guard, sorted. The guard may have more, if
// the last process learned an address and died before it saved the table. Packets to an address
// that is missing here would leave in clear.
func union(table, guarded []netip.Addr) []netip.Addr {
	all := slices.Concat(table, guarded)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// readUnderlay returns the link between nodes, found by the addresses of the last good table.
func (l *loop) readUnderlay(lastGood *cluster.Table) (underlay.Link, error) {
	var nodes, self []netip.Addr
	if lastGood != nil {
		for _, p := range cluster.Local(lastGood.Peers) {
			nodes = append(nodes, p.Addresses...)
		}
		if lastGood.Self != nil {
			self = lastGood.Self.Addresses
		}
	}
	asked := slices.Concat(nodes, self)
	if l.seen.underlay && slices.Equal(asked, l.seen.asked) {
		return l.underlay, nil
	}
	u, err := l.host.Underlay(nodes, self)
	if errors.Is(err, underlay.ErrNone) {
		// Keep the gateways while the link is down for a moment, so that no node can claim them.
		u.Gateways = l.underlay.Gateways
	}
	l.underlay = u
	l.seen.underlay, l.seen.asked = err == nil, asked
	return u, err
}

// applyGuard applies the settings of the guard if they may differ from those in force. New links
// are handled by guard.Watch.
func (l *loop) applyGuard(want guard.Settings) error {
	if l.seen.guard == nil || !l.seen.guard.Equal(want) {
		apply := l.guard.Update
		if l.seen.guard == nil {
			apply = l.guard.Apply
		}
		l.seen.guard = nil
		if _, err := apply(want); err != nil {
			l.health.Undone(stepGuard)
			return fmt.Errorf("guard: %w", err)
		}
		l.seen.guard = &want
	}
	if l.openedInForce != nil {
		l.openedInForce()
	}
	if len(l.guard.Unguarded()) == 0 {
		l.health.Done(stepGuard)
	}
	return nil
}

// shutForLinks adds a problem to d for each link without its guard, and shuts the node if there is
// one. Tunnels and routes are applied regardless, because they only move traffic away from such a
// link.
func (l *loop) shutForLinks(d *plan.Decision) error {
	links := l.guard.Unguarded()
	if len(links) == 0 {
		return nil
	}
	l.health.Undone(stepGuard)
	d.Problems = slices.Concat(d.Problems, links)
	return l.shut()
}

// withOwnKey returns s with the claim of this node changed to its real key. So no other node is
// believed if it claims this key.
func withOwnKey(s cluster.State, self string, key wgkey.Public) cluster.State {
	keys := []cluster.Key{{Public: key}}
	cloned := false
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Name != self || n.Claim != nil && slices.Equal(n.Claim.Keys, keys) {
			continue
		}
		var c cluster.Claim
		if n.Claim != nil {
			c = *n.Claim
		}
		c.Keys = keys
		if !cloned {
			s.Nodes, cloned = slices.Clone(s.Nodes), true
		}
		s.Nodes[i].Claim = &c
	}
	return s
}

// base applies rules and unreachable routes, but only if the node has no tunnel device. If it has
// one, they already exist, and routes to peers that are not known yet must not be removed.
func (l *loop) base(d plan.Decision) error {
	have, err := l.host.Read()
	if err != nil {
		return err
	}
	if len(have.Devices) > 0 {
		return nil
	}
	d.Host.Devices, d.Host.Peers = nil, nil
	return l.syncHost(d.Host)
}

// apply makes the kernel match d, the guard first.
func (l *loop) apply(ctx context.Context, in plan.Inputs, d plan.Decision) error {
	began := time.Now()
	if err := l.applyGuard(d.Guard); err != nil {
		return err
	}
	if len(d.Tunnel.Devices) == 0 {
		return l.base(d)
	}
	if !l.based {
		if err := l.base(d); err != nil {
			return err
		}
		l.based = true
	}
	if l.seen.families != d.Tunnel.Underlay {
		l.seen.families, l.seen.changed = d.Tunnel.Underlay, time.Now()
	}
	changes, tunnelErr := l.tunnels.Sync(ctx, d.Tunnel)
	if !changes.Empty() {
		l.log.Info("tunnels changed", "created", len(changes.Create),
			"configured", peerChanges(changes), "removed", len(changes.Remove),
			"took", time.Since(began), "waited", since(in.Since))
	}
	err := errors.Join(tunnelErr, l.syncHost(d.Host))

	probed := l.planner.ProbePeers(in, d)
	l.probe(d.Host.SelfAddrs, probed)
	l.reaches.set(d.Host.SelfAddrs, reachPeers(probed, in.Table.Peers, l.remoteOfFeatures()))
	return err
}

// peerChanges returns the number of peers that c configures.
func peerChanges(c tunnel.Changes) int {
	n := 0
	for _, d := range c.Configure {
		n += len(d.Peers)
	}
	return n
}

func (l *loop) syncHost(want hostnet.Want) error {
	ops, err := l.host.SyncWant(want)
	logOps(l.log, "routing changed", ops)
	if err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	l.flowtable = "on"
	if !want.Flowtable {
		l.flowtable = "off: not with serviceProxy " + config.ServiceProxyEBPF
	} else if err := l.host.FlowtableProblem(); err != nil {
		l.flowtable = "off: " + err.Error()
	}
	return nil
}

// finish ends a turn: it logs new problems and publishes a new view. If err is nil and the inputs
// are complete, it first calls publish.
func (l *loop) finish(in plan.Inputs, d plan.Decision, refusals []cluster.Refusal,
	err error) error {
	for _, r := range refusals {
		if !slices.Contains(l.refusals, r) {
			l.log.Warn("claim refused", "node", r.Node, "incumbent", r.Incumbent,
				"reason", r.Reason)
		}
	}

	if err == nil && in.Complete {
		err = l.publish(in, d)
	}
	if in.Complete && len(d.Problems) > 0 {
		err = errors.Join(err, l.shut())
	}

	l.refusals, l.last = refusals, d
	problems := slices.Concat(d.Problems, d.Notes)
	if err != nil {
		problems = append(problems, err.Error())
	}

	for _, p := range problems {
		if !slices.Contains(l.problems, p) {
			l.log.Warn("new problem of the node", "problem", p)
		}
	}

	l.problems = problems
	applied := err == nil && in.Complete
	if applied {
		table := in.Table
		l.lastGood, l.applied = &table, table.Revision
	}
	l.change(func(v *view) {
		v.outcome = l.outcome
		if applied && v.state.Revision == v.applied {
			v.waiting = time.Time{}
		}
	})

	if err != nil {
		// While the link is away for a moment, the kernel refuses routes from its address. That
		// error must not make the node unready.
		if !l.flap.Held {
			l.health.Undone(stepApply)
		}
		return err
	}
	if len(d.Problems) > 0 {
		return errNotReady
	}
	return nil
}

// publish writes the last good table, publishes this node's claim, and then opens the node for
// pods. A problem, such as a link without a guard, keeps the node closed.
func (l *loop) publish(in plan.Inputs, d plan.Decision) error {
	if l.lastGood == nil || !reflect.DeepEqual(*l.lastGood, in.Table) {
		if err := l.table.Write(in.Table, l.planner.Changed); err != nil {
			return err
		}
	}
	if d.Claim == nil {
		return nil
	}
	if l.kube != nil {
		if err := l.kube.Publish(*d.Claim); err != nil {
			return err
		}
	}
	if len(d.Problems) > 0 {
		return nil
	}
	return l.open(in.Config, d)
}

// open opens the node for pods: it writes the marker, and then the CNI configuration.
func (l *loop) open(cfg config.Config, d plan.Decision) error {
	if err := l.writeMarker(d); err != nil {
		return err
	}
	changed, err := node.WriteConflist(cfg, d.PodMTU, d.PodPrefixes)
	if err != nil {
		return err
	}
	if changed {
		l.log.Info("wrote the CNI configuration", "file", node.ConflistPath(cfg.CNI.ConfDir),
			"mtu", d.PodMTU)
	}
	l.health.Done(stepApply)
	return nil
}

// shut closes the node for new pods: it removes the marker, so ADD fails with a code that makes
// runtimes retry. The CNI configuration stays, because existing pods need it for their DEL.
func (l *loop) shut() error {
	l.health.Undone(stepApply)
	if err := os.Remove(abi.ReadyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove marker: %w", err)
	}
	return nil
}

// writeMarker writes the marker if it differs from the existing one, except in its time.
func (l *loop) writeMarker(d plan.Decision) error {
	boot, err := abi.BootID()
	if err != nil {
		return err
	}
	want := abi.Marker{BootID: boot,
		Families: cluster.Node{PodPrefixes: d.PodPrefixes}.PodFamilies(),
		Devices:  []string{plan.DeviceName}}
	if have, err := abi.ReadMarker(abi.ReadyFile); err == nil {
		want.Written = have.Written
		if reflect.DeepEqual(have, want) {
			return nil
		}
	}
	want.Written = time.Now().UTC()
	return abi.WriteMarker(abi.ReadyFile, want)
}

// since returns the time since t, or 0 if t is zero.
func since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// errNotReady is the result of a successful turn with problems, after which the node is not ready.
var errNotReady = errors.New("not ready for pods")
