package keeper

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// LogDrops logs which connections policies deny until ctx ends, with the policies and the rule.
// While another program listens it tries again. Its thread is of the node's network namespace.
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
	limit := newDropLimit()
	for {
		drops, err := l.Receive()
		if err != nil {
			return err
		}
		for _, d := range drops {
			sender := k.podAt(d.Src)
			if limit.accept(d, sender, time.Now()) {
				k.logDrop(d, limit.takeSkipped(sender))
			}
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

// logDrop logs one drop as the plan in force explains it.
func (k *Keeper) logDrop(d nftables.Dropped, skipped int) {
	fields := []any{"reason", d.Reason, "from", d.Src, "to", d.Dst, "proto", protoWord(d.Proto),
		"port", d.Port}
	k.mu.Lock()
	fields = append(fields, k.explainLocked(d)...)
	k.mu.Unlock()
	if skipped > 0 {
		fields = append(fields, "skipped", skipped)
	}
	k.log.Info("a policy denied a connection", fields...)
}

// explainLocked returns log fields for the side that denies, its policies and the rule. It returns
// none if the plan in force does not deny for the same reason, because it has changed since.
func (k *Keeper) explainLocked(d nftables.Dropped) []any {
	plan := k.shown.Load().plan
	if plan == nil {
		return nil
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

		fields := []any{"direction", direction.String()}
		if whose := k.planner.Whose(own); len(whose) == 1 {
			fields = append(fields, "pod", whose[0].Name.String())
		}
		if name, _ := k.planner.Decider(plan, direction, f); name != "" {
			return append(fields, "policies", []string{name},
				"rule", k.planner.DecidingRule(plan, direction, f))
		}
		isolating, _ := k.planner.Explain(plan, direction, f)
		return append(fields, "policies", isolating, "rule", "no rule of these allows it")
	}
	return nil
}

// protoWord names a protocol.
func protoWord(p policy.Proto) string {
	switch p {
	case icmp:
		return "icmp"
	case icmp6:
		return "icmp6"
	case policy.TCP, policy.UDP, policy.SCTP:
		return p.String()
	}
	return fmt.Sprint(uint8(p))
}
