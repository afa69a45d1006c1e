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

	if in.complete {
		if err := l.recall(&in); err != nil {
			// Features work also if the routes cannot be read.
			d := l.planner.decide(in)
			l.turnFeatures(in, &d)
			return l.finish(in, l.last, l.refusals, err)
		}
	}

	in, d := l.flap.hold(time.Now(), in, l.planner.decide(in))
	l.turnFeatures(in, &d)
	otherErr := l.shutForOtherCNI(in.cfg.CNI.ConfDir, &d)
	if !in.complete {
		// A restarted veild that does not know its peers yet must not remove them.
		err = errors.Join(l.base(d), otherErr, l.shutForLinks(&d))
		return l.finish(in, d, refusals, err)
	}

	err = errors.Join(l.apply(ctx, in, d), otherErr, l.shutForLinks(&d))
	if err == nil {
		l.provePassage(ctx, &d)
	}
	if l.seen.guard != nil {
		l.pods.Begin(d.podMTU)
	}

	return l.finish(in, d, refusals, err)
}

// gather collects the inputs of one turn. They do not change during the turn.
func (l *loop) gather() (inputs, []cluster.Refusal, error) {
	var told news
	l.change(func(v *view) { told, v.unread = v.news, time.Time{} })
	in := inputs{cfg: told.cfg, key: l.key, pathMTU: told.pathMTU, since: told.unread,
		lastSelf: l.last.self, lastMTU: l.last.podMTU}
	state, lastGood := told.state, l.lastGood
	in.clockNote = l.checkClock(&in)

	in.vips, in.openings = l.closedByFeatures(), l.openedByFeatures()
	in.complete, in.synced = state.Synced || lastGood != nil, state.Synced
	link, err := l.readUnderlay(lastGood)
	if err != nil && !errors.Is(err, underlay.ErrNone) {
		return in, nil, err
	}
	in.underlayMTU = link.MTU
	if in.cfg.MTU > 0 {
		in.underlayMTU = in.cfg.MTU
	}
	in.wideMTU = node.WideMTU(in.cfg.MTU, link)
	in.overlaps = node.Overlaps(in.cfg, link.Networks)
	in.localAddrs, in.otherAddrs = link.Addrs, link.Assigned
	var refusals []cluster.Refusal
	rules := in.cfg.Rules(link.Gateways)
	added, problems := cluster.AddedRanges(rules, state, lastGood)
	rules.ServiceRanges = slices.Concat(rules.ServiceRanges, added)
	in.table, refusals = l.resolver.Resolve(rules,
		withOwnKey(state, in.cfg.Node, in.key.Public()), lastGood)
	l.metrics.ObserveDecided(l.resolver.Decided())
	in.table.ServiceRanges, in.rangeProblems = added, problems
	if !state.Synced {
		have, err := l.guard.Read()
		if err != nil {
			return in, nil, err
		}
		in.table.NodeAddrs = union(in.table.NodeAddrs, have.Nodes)
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

// readUnderlay returns the link between nodes. It looks for the link with the addresses of the last
// good table.
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
func (l *loop) shutForLinks(d *decision) error {
	links := l.guard.Unguarded()
	if len(links) == 0 {
		return nil
	}
	l.health.Undone(stepGuard)
	d.problems = slices.Concat(d.problems, links)
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
func (l *loop) base(d decision) error {
	have, err := l.host.Read()
	if err != nil {
		return err
	}
	if len(have.Devices) > 0 {
		return nil
	}
	d.host.Devices, d.host.Peers = nil, nil
	return l.syncHost(d.host)
}

// apply makes the kernel match d, the guard first.
func (l *loop) apply(ctx context.Context, in inputs, d decision) error {
	began := time.Now()
	if err := l.applyGuard(d.guard); err != nil {
		return err
	}
	if len(d.tunnel.Devices) == 0 {
		return l.base(d)
	}
	if !l.based {
		if err := l.base(d); err != nil {
			return err
		}
		l.based = true
	}
	if l.seen.families != d.tunnel.Underlay {
		l.seen.families, l.seen.changed = d.tunnel.Underlay, time.Now()
	}
	changes, tunnelErr := l.tunnels.Sync(ctx, d.tunnel)
	if !changes.Empty() {
		l.log.Info("tunnels changed", "created", len(changes.Create),
			"configured", peerChanges(changes), "removed", len(changes.Remove),
			"took", time.Since(began), "waited", in.waited())
	}
	err := errors.Join(tunnelErr, l.syncHost(d.host))

	probed := l.planner.probePeers(in, d)
	l.probe(d.host.SelfAddrs, probed)
	l.reaches.set(d.host.SelfAddrs, reachPeers(probed, in.table.Peers, l.remoteOfFeatures()))
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
func (l *loop) finish(in inputs, d decision, refusals []cluster.Refusal, err error) error {
	for _, r := range refusals {
		if !slices.Contains(l.refusals, r) {
			l.log.Warn("claim refused", "node", r.Node, "incumbent", r.Incumbent,
				"reason", r.Reason)
		}
	}

	if err == nil && in.complete {
		err = l.publish(in, d)
	}
	if in.complete && len(d.problems) > 0 {
		err = errors.Join(err, l.shut())
	}

	l.refusals, l.last = refusals, d
	problems := slices.Concat(d.problems, d.notes)
	if err != nil {
		problems = append(problems, err.Error())
	}

	for _, p := range problems {
		if !slices.Contains(l.problems, p) {
			l.log.Warn("new problem of the node", "problem", p)
		}
	}

	l.problems = problems
	applied := err == nil && in.complete
	if applied {
		table := in.table
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
		if !l.flap.held {
			l.health.Undone(stepApply)
		}
		return err
	}
	if len(d.problems) > 0 {
		return errNotReady
	}
	return nil
}

// publish writes the last good table, publishes this node's claim, and then opens the node for
// pods. A problem, such as a link without a guard, keeps the node closed.
func (l *loop) publish(in inputs, d decision) error {
	if l.lastGood == nil || !reflect.DeepEqual(*l.lastGood, in.table) {
		if err := l.table.Write(in.table, l.planner.changed); err != nil {
			return err
		}
	}
	if d.claim == nil {
		return nil
	}
	if l.kube != nil {
		if err := l.kube.Publish(*d.claim); err != nil {
			return err
		}
	}
	if len(d.problems) > 0 {
		return nil
	}
	return l.open(in.cfg, d)
}

// open opens the node for pods: it writes the marker, and then the CNI configuration.
func (l *loop) open(cfg config.Config, d decision) error {
	if err := l.writeMarker(d); err != nil {
		return err
	}
	changed, err := node.WriteConflist(cfg, d.podMTU, d.podPrefixes)
	if err != nil {
		return err
	}
	if changed {
		l.log.Info("wrote the CNI configuration", "file", node.ConflistPath(cfg.CNI.ConfDir),
			"mtu", d.podMTU)
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
func (l *loop) writeMarker(d decision) error {
	boot, err := abi.BootID()
	if err != nil {
		return err
	}
	want := abi.Marker{BootID: boot,
		Families: cluster.Node{PodPrefixes: d.podPrefixes}.PodFamilies(),
		Devices:  []string{deviceName}}
	if have, err := abi.ReadMarker(abi.ReadyFile); err == nil {
		want.Written = have.Written
		if reflect.DeepEqual(have, want) {
			return nil
		}
	}
	want.Written = time.Now().UTC()
	return abi.WriteMarker(abi.ReadyFile, want)
}
