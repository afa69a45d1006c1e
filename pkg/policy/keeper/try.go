package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/revocation"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// Tried is what would change on this node if policies came in force.
type Tried struct {
	// Node is the node that answers.
	Node string `json:"node"`
	trial.Result
	// Problems are sentences about policies that would deny more than is written.
	Problems []string `json:"problems,omitempty"`
	// Notes are sentences about what the answer does not contain.
	Notes []string `json:"notes,omitempty"`
}

// maxNamesKept bounds the names of addresses that a try keeps.
const maxNamesKept = 1 << 16

// Try judges the known connections of this node's pods, and the last packets that policies denied,
// first by the known policies, then by the known policies with changed and without deleted. It
// changes nothing: it plans with a copy of the planner, and reads conntrack once. One try runs at a
// time. Try must run on a thread of the node's network namespace.
func (k *Keeper) Try(changed policy.Policies, deleted []policy.Ref) (*Tried, error) {
	if !k.trying.TryLock() {
		return nil, errBusy
	}
	defer k.trying.Unlock()
	own, err := revocation.OwnAddrs()
	if err != nil {
		return nil, err
	}
	p, notes, err := k.copyPlanner()
	if err != nil {
		return nil, err
	}

	before := p.Plan()
	if err := change(p, changed, deleted); err != nil {
		return nil, err
	}
	after := p.Plan()
	o := trial.Config{Before: before, After: after, Own: own, Name: k.namer(p, after),
		Denying: func(plan *policy.Plan, d policy.Direction, f policy.Flow) []string {
			if plan != after {
				return nil // The copy has the changed policies.
			}
			return denying(p, plan, d, f)
		}}
	t, err := k.judgeKnown(o)
	if err != nil {
		return nil, err
	}
	k.judgeDrops(t, o)
	return &Tried{Node: k.node, Result: t.Result(), Notes: notes,
		Problems: newProblems(before, after)}, nil
}

// copyPlanner returns a copy of the planner, and sentences about what it lacks.
func (k *Keeper) copyPlanner() (p *planner.Planner, notes []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if problem := k.notKnownLocked(); problem != "" {
		return nil, nil, errors.New(problem)
	}
	now := k.shown.Load()
	if now.plan == nil {
		return nil, nil, errors.New("no policies are in force yet: see veilctl status")
	}
	if now.enforced != k.told {
		notes = append(notes, "a change of the API server is not in force yet: it counts as in force")
	}
	if n := now.status.Pending; n > 0 {
		notes = append(notes, fmt.Sprintf("%d pods of this node are mute, since the daemon does not "+
			"know yet how to judge them: their connections are not judged", n))
	}
	return k.planner.Copy(), notes, nil
}

// change puts and deletes policies. It returns an error for a change that the API server would
// refuse.
func change(p *planner.Planner, changed policy.Policies, deleted []policy.Ref) error {
	for _, c := range changed.Namespaced {
		if !p.HasNamespace(c.Namespace) {
			return fmt.Errorf("NetworkPolicy %s: namespace %s does not exist: the cluster has %s",
				c.Name, c.Namespace, some(p.Namespaces()))
		}
		p.PutPolicy(c)
	}
	for _, c := range changed.Cluster {
		p.PutClusterPolicy(c)
	}

	for _, r := range deleted {
		exist := p.Refs(r.Namespace)
		if !slices.Contains(exist, r) {
			var names []string
			for _, e := range exist {
				names = append(names, e.String())
			}
			return fmt.Errorf("there is no %s to delete: there is %s", r, some(names))
		}
		if r.Kind == policy.KindNetworkPolicy {
			p.DeletePolicy(policy.Name{Namespace: r.Namespace, Name: r.Name})
		} else {
			p.DeleteClusterPolicy(r.Name)
		}
	}
	return nil
}

// some returns a list of names for an error. It shortens a long list.
func some(names []string) string {
	const most = 20
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// namer returns a function that names the pod or the node that has an address. It uses the pods of
// p and the nodes of the Keeper.
func (k *Keeper) namer(p *planner.Planner, plan *policy.Plan) func(netip.Addr) trial.End {
	nodes := map[netip.Addr]string{}
	k.mu.Lock()
	for node, addrs := range k.nodeAddrs {
		for _, a := range addrs {
			nodes[a] = node
		}
	}
	// The first address of a pod prefix never belongs to a pod: services at links use it for SNAT.
	for node, prefixes := range k.prefixes {
		for _, p := range prefixes {
			nodes[p.Masked().Addr().Next()] = node
		}
	}
	k.mu.Unlock()

	kept := map[netip.Addr]trial.End{}
	return func(a netip.Addr) trial.End {
		if e, has := kept[a]; has {
			return e
		}
		e := trial.End{Name: a.String()}
		if whose := p.Whose(a); len(whose) == 1 {
			e.Name = whose[0].Name.String()
		} else if node := nodes[a]; node != "" {
			e.Name = "node " + node
		} else {
			e.Unknown = plan.IsInside(a)
		}
		if len(kept) < maxNamesKept {
			kept[a] = e
		}
		return e
	}
}

// denying returns the policies that deny a flow by a plan of p.
func denying(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) []string {
	if name, _ := p.Decider(plan, d, f); name != "" {
		return []string{name}
	}
	isolating, _ := p.Explain(plan, d, f)
	return isolating
}

// judgeKnown returns a Trial of the known connections.
func (k *Keeper) judgeKnown(o trial.Config) (t *trial.Trial, err error) {
	err = k.eachKnown(o.Before, func() { t = trial.New(o) },
		func(c policy.Known) { t.Known(c) })
	return t, err
}

// eachKnown calls each with the connections that conntrack knows, and with those of the fast path,
// which conntrack does not see. It calls begin first, and again when it starts over.
func (k *Keeper) eachKnown(plan *policy.Plan, begin func(), each func(policy.Known)) error {
	fast := map[policy.Known]bool{}
	if k.fast != nil {
		opened, err := k.fast.Opened(k.shown.Load().linkByAddr(plan))
		if err != nil {
			return fmt.Errorf("read connections of the fast path: %w", err)
		}
		for _, o := range opened {
			fast[policy.Known{Client: o.Client.Addr(), Server: o.Server.Addr(), Proto: policy.TCP,
				Port: o.Server.Port(), ClientPort: o.Client.Port()}] = true
		}
	}

	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	err = nl.EachConnection(c, begin, func(c nl.Connection) {
		delete(fast, revocation.Known(c))
		each(revocation.Known(c))
	})
	for c := range fast {
		each(c)
	}
	return errors.Join(err, c.Close())
}

// judgeDrops passes to t the last packets that policies denied.
func (k *Keeper) judgeDrops(t *trial.Trial, o trial.Config) {
	if k.drops == nil {
		return
	}
	attached := o.Before.Attached()
	for _, d := range k.drops() {
		proto, known := policy.ProtoOf(d.Protocol)
		if !known || !slices.Contains(logged, d.Reason) {
			continue
		}
		t.Dropped(policy.Flow{Src: d.Src, Dst: d.Dst, Proto: proto, Port: d.DstPort,
			FromPod: attached[d.Src], ToPod: attached[d.Dst], ToNode: o.Own[d.Dst]})
	}
}

// newProblems returns why policies would deny more than is written, without those that do already.
func newProblems(before, after *policy.Plan) []string {
	text := func(d policy.Denial) string {
		kind := policy.KindNetworkPolicy + " " + d.Name.String()
		if d.Namespace == "" {
			kind = policy.KindClusterNetworkPolicy + " " + d.Name.Name
		}
		return kind + ": " + d.Problem
	}
	problems := map[string]bool{}
	for _, d := range after.Denials {
		problems[text(d)] = true
	}
	for _, d := range before.Denials {
		delete(problems, text(d))
	}
	return slices.Sorted(maps.Keys(problems))
}
