package keeper

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"weak"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// LogDrops passes the packets that policies deny to PolicyConfig.Dropped until ctx ends, and logs
// which connections they are, with the policies and the rule. While another program listens, it
// tries again. It must run on a thread of the node's network namespace.
func (k *Keeper) LogDrops(ctx context.Context) error {
	warned := false
	sampled := func(err error) {
		if k.sampled != nil {
			k.sampled(err)
		}
	}

	for {
		l, err := nftables.OpenDropLog()
		if err == nil {
			sampled(nil)
			err = k.logDrops(ctx, l)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sampled(fmt.Errorf("packets that policies deny are only counted: %w", err))
		if !warned {
			k.log.Warn("connections that policies deny are not logged", "error", err)
			warned = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(resync):
		}
	}
}

// logDrops logs what l receives, and closes it at the end.
func (k *Keeper) logDrops(ctx context.Context, l *nftables.DropLog) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		if stop() {
			_ = l.Close()
		}
	}()
	for {
		drops, err := l.Receive()
		if err != nil {
			return err
		}
		for _, d := range drops {
			by, sender := k.explain(d), k.podAt(d.Src)
			if k.dropped != nil {
				k.dropped(d.Packet, telemetry.DroppedPacket{Reason: d.Reason,
					SrcPod: wordOf(sender), DstPod: wordOf(k.podAt(d.Dst)),
					Policies: by.Policies, MorePolicies: by.More, Rule: by.Rule})
			}
			k.denied.Add(d, by, sender)
		}
	}
}

// podAt returns the pod that has an address; the zero Name means that no pod is known to have it.
func (k *Keeper) podAt(a netip.Addr) (name policy.Name) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if whose := k.planner.Whose(a); len(whose) == 1 {
		name = whose[0].Name
	}
	return name
}

// wordOf returns the name of a pod, or "" for the zero Name.
func wordOf(name policy.Name) string {
	if name == (policy.Name{}) {
		return ""
	}
	return name.String()
}

// explain returns the side, the policies and the rule that deny a packet by the plan in force.
func (k *Keeper) explain(d nftables.Dropped) (by droplog.Denier) {
	k.mu.Lock()
	defer k.mu.Unlock()
	plan := k.shown.Load().plan
	if plan == nil || !slices.Contains(droplog.Reasons, d.Reason) {
		return by
	}
	for _, direction := range []policy.Direction{policy.Egress, policy.Ingress} {
		f, own := d.Flow, d.Dst
		if direction == policy.Egress {
			own = d.Src
		}
		f.FromPod, f.ToPod = direction == policy.Egress, direction == policy.Ingress
		f.ToNode = f.ToNode && f.FromPod
		names := explain.Names{}
		switch {
		case !k.planner.Attached(own):
			continue
		case d.Reason == isolated[direction]:
			names = k.isolating.of(plan, isolatedEnd{own, direction}, k.planner)
			if len(names.Some) == 0 {
				continue
			}
		case d.Reason == isolated[policy.Ingress] || d.Reason == isolated[policy.Egress],
			plan.Judge(f).String() != d.Reason:
			continue
		}

		by.Direction = direction.String()
		if whose := k.planner.Whose(own); len(whose) == 1 {
			by.Pod = whose[0].Name.String()
		}
		if len(names.Some) > 0 {
			by.Policies, by.More, by.Rule = names.Some, names.More, "no rule of these allows it"
			return by
		}
		if name, _ := explain.Decider(k.planner, plan, direction, f); name != "" {
			by.Policies, by.Rule = []string{name}, explain.DecidingRule(k.planner, plan, direction,
				f)
			return by
		}
		names = k.isolating.of(plan, isolatedEnd{own, direction}, k.planner)
		by.Policies, by.More, by.Rule = names.Some, names.More, "no rule of these allows it"
		return by
	}
	return by
}

// isolated holds the drop reason of flows that no policy allows which isolates their pod. The
// reason names the direction, so that explain need not judge all lines of the policies again.
var isolated = map[policy.Direction]string{policy.Ingress: policy.DenyIngress.String(),
	policy.Egress: policy.DenyEgress.String()}

// isolating caches results of planner.Isolating for one plan, because a pod may have thousands of
// policies and thousands of denied packets. The zero value is ready.
type isolating struct {
	// plan does not keep an old plan in memory.
	plan weak.Pointer[policy.Plan]
	by   map[isolatedEnd]explain.Names
}

type isolatedEnd struct {
	addr      netip.Addr
	direction policy.Direction
}

// of returns the policies that isolate an attached end.
func (i *isolating) of(plan *policy.Plan, e isolatedEnd, p *planner.Planner) explain.Names {
	if is := weak.Make(plan); i.plan != is {
		i.plan, i.by = is, map[isolatedEnd]explain.Names{}
	}
	names, has := i.by[e]
	if !has {
		names = explain.Isolating(p, plan, e.direction, e.addr)
		i.by[e] = names
	}
	return names
}
