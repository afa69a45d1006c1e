package keeper

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// LogDrops passes the packets that policies deny to PolicyConfig.Dropped until ctx ends, and logs
// which connections they are, with the policies and the rule. While another program listens, it
// tries again. It must run on a thread of the node's network namespace.
func (k *Keeper) LogDrops(ctx context.Context) error {
	warned := false
	for {
		l, err := nftables.OpenDropLog()
		if err == nil {
			err = k.logDrops(ctx, l)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
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
					Policies: by.Policies, Rule: by.Rule})
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
		if !k.planner.Attached(own) || plan.Judge(f).String() != d.Reason {
			continue
		}

		by.Direction = direction.String()
		if whose := k.planner.Whose(own); len(whose) == 1 {
			by.Pod = whose[0].Name.String()
		}
		if name, _ := k.planner.Decider(plan, direction, f); name != "" {
			by.Policies, by.Rule = []string{name}, k.planner.DecidingRule(plan, direction, f)
			return by
		}
		by.Policies, _ = k.planner.Explain(plan, direction, f)
		by.Rule = "no rule of these allows it"
		return by
	}
	return by
}
