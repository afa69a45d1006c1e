package hostnet

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/device"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// ErrForeign matches the error of Apply for a route that cannot be added, because a route of
// another owner has the same identity.
var ErrForeign = errors.New("another owner has a route of the same identity")

// Apply applies ops in order. A failed op does not stop the others, with one exception: if a
// closing route could not be added, nothing is removed. The error names every failed op. Read and
// Diff then return exactly the missing changes.
func (h *Host) Apply(ops []Op) error {
	h.links = map[string]int{}
	var errs []error
	open := false
	for _, op := range ops {
		if open && op.phase() >= phaseUntunnel {
			errs = append(errs, fmt.Errorf("%s: not removed: a closing route could not be added", op))
			continue
		}
		if err := h.do(op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
			open = open || op.phase() == phaseClose
		}
	}
	return errors.Join(errs...)
}

// Sync makes the kernel match want, and returns the changes that it made. It reads the kernel
// first, but not if the last Sync succeeded and Forget was not called since: with a thousand peers,
// reading takes longer than the change of one peer. Call Forget after a notification of
// pkg/hostnet/watch.
func (h *Host) Sync(want State) ([]Op, error) {
	if h.have == nil {
		have, err := h.Read()
		if err != nil {
			return nil, err
		}
		h.have = &have
	} else if err := h.refreshFlows(); err != nil {
		return nil, err
	}

	h.podLinksChanged = false
	have := *h.have
	if h.flows.None() != nil {
		want.Flows = ""
	}

	ops := Diff(have, want)
	h.have = nil
	if err := h.Apply(ops); err != nil {
		return ops, err
	}

	if h.flows.None() != nil { // Apply found out that the kernel has no flow tables.
		want.Flows = ""
		ops = slices.DeleteFunc(ops, func(op Op) bool { _, flows := op.(flowsOp); return flows })
	}

	h.have = &State{
		Rules: want.Rules, Routes: want.Routes, NAT: want.NAT, Outer: want.Outer,
		Devices: slices.Clone(have.Devices),
		Flows:   want.Flows, Joins: have.Joins, Joined: have.Joins,
		Forward4: have.Forward4 || want.Forward4, Forward6: have.Forward6 || want.Forward6,
		Reflect4: reflectAfter(have.Reflect4, want.Reflect4),
		Reflect6: reflectAfter(have.Reflect6, want.Reflect6),
	}

	for _, op := range ops {
		if d, ok := op.(deviceOp); ok {
			i := slices.Index(h.have.Devices, d.have)
			h.have.Devices[i] = d.want
		}
	}

	return ops, nil
}

// Forget makes the next Sync read the kernel.
func (h *Host) Forget() { h.have = nil }

// ForgetPodLinks makes the next Sync check which pod links are in the flow tables. It returns false
// if the kernel has no flow tables, and no Sync is needed.
func (h *Host) ForgetPodLinks() bool {
	if h.flows.None() != nil {
		return false
	}
	h.podLinksChanged = true
	return true
}

// refreshFlows reads the flow tables and the links that belong to them, if ForgetPodLinks was
// called.
func (h *Host) refreshFlows() error {
	if !h.podLinksChanged {
		return nil
	}
	links, err := h.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	read, err := nft.ReadAll(flowtable.Tables(nil)...)
	if err != nil {
		return err
	}
	h.have.Flows, h.have.Joins, h.have.Joined = h.flows.Read(links, read)
	h.have.sortSmall()
	return nil
}

func (h *Host) do(op Op) error {
	if h.inject != nil {
		if err := h.inject(op); err != nil {
			return err
		}
	}
	return op.apply(h)
}

// Remove removes all routes, rules and tables of Kubeveil, and resets fwmark_reflect. It keeps the
// settings of devices and forwarding. It returns a line for each change, and continues after
// errors.
func (h *Host) Remove() ([]string, error) {
	h.Forget()
	have, err := h.Read()
	if err != nil {
		return nil, err
	}
	h.links = map[string]int{}
	var took []string
	var errs []error
	for _, op := range Diff(have, State{}) {
		if err := h.do(op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
			continue
		}
		took = append(took, op.String())
	}
	return took, errors.Join(errs...)
}

func (o routeOp) apply(h *Host) error {
	r, err := o.route.ToLibrary(h.linkIndex)
	if err != nil {
		if o.verb == verbDelete && errors.Is(err, nl.ErrNotFound) {
			return nil // The kernel has removed the route together with its device.
		}
		return err
	}

	switch o.verb {
	case verbAdd:
		err = nl.Err(h.nl.RouteAdd(r))
	case verbReplace:
		err = h.nl.RouteReplace(r)
	default:
		err = nl.Err(h.nl.RouteDel(r))
		if errors.Is(err, nl.ErrNotFound) {
			return nil
		}
		return err
	}

	switch {
	case errors.Is(err, nl.ErrExists):
		return fmt.Errorf("%w: delete it, or give it another metric", ErrForeign)
	case errors.Is(err, unix.EINVAL) && o.route.Source.IsValid():
		return fmt.Errorf("%w: is %s assigned to a link of this node, and no longer tentative?",
			err, o.route.Source)
	}

	return err
}

// linkIndex returns the index of a link by its name, or by the name "#INDEX …" that
// rtnetlink.FromLibrary makes.
func (h *Host) linkIndex(name string) (int, error) {
	if i, ok := h.links[name]; ok {
		return i, nil
	}
	index := 0
	if _, err := fmt.Sscanf(name, "#%d", &index); err != nil {
		link, err := h.nl.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find device %s: %w", name, err)
		}
		index = link.Attrs().Index
	}
	h.links[name] = index
	return index, nil
}

// ruleUnreachable is FR_ACT_UNREACHABLE (include/uapi/linux/fib_rules.h).
const ruleUnreachable = 7

func (o ruleOp) apply(h *Host) error {
	r := nl.NewRule()
	r.Family = nl.FamilyV4
	if o.rule.V6 {
		r.Family = nl.FamilyV6
	}
	mask := o.rule.Mark
	r.Priority, r.Mark, r.Mask, r.Table = o.rule.Pref, o.rule.Mark, &mask, o.rule.Table
	if o.rule.Table == 0 {
		r.Type = ruleUnreachable
	}
	if o.rule.NotGroup != 0 {
		r.SuppressIfgroup = int(o.rule.NotGroup)
	}
	if o.verb == verbDelete {
		if err := nl.Err(h.nl.RuleDel(r)); !errors.Is(err, nl.ErrNotFound) {
			return err
		}
		return nil
	}
	r.Protocol = abi.RouteProtoNode
	return h.nl.RuleAdd(r)
}

func (o settingOp) apply(*Host) error { return sysctl.Write(o.path, o.value) }

func (o tableOp) apply(*Host) error {
	if o.want {
		return o.table.Replace()
	}
	_, err := nft.Delete(o.table.Name)
	return err
}

func (o deviceOp) apply(h *Host) error { return device.Apply(h.nl, o.have, o.want) }

// FlowtableProblem returns the reason why some or all packets of known flows do not take the fast
// path although the Want enables it. It returns nil if there is no problem.
func (h *Host) FlowtableProblem() error { return h.flows.Problem() }

// StopFlows makes every packet take the slow path, until the next Sync that enables flow tables.
func (h *Host) StopFlows() error {
	h.Forget()
	return flowtable.Stop()
}

// Differs reports whether the routes and tunnel devices of c differ from the result of the last
// Sync. It does not query the kernel. Notifications about the writes of Sync itself do not differ.
func (h *Host) Differs(c watch.Change) bool {
	if len(c.Routes) == 0 && len(c.Devices) == 0 {
		return false
	}
	if h.have == nil {
		return true
	}

	for name, d := range c.Devices {
		i := slices.IndexFunc(h.have.Devices, func(have Device) bool { return have.Name == name })
		if i < 0 {
			return true
		}
		if have := h.have.Devices[i]; have.MTU != d.MTU || have.Group != d.Group ||
			have.QueueLen != d.QueueLen || have.Up != d.Up {
			return true
		}
	}
	there := map[rtnetlink.Route]bool{}
	for _, e := range c.Routes {
		if e.Ours {
			there[e.Route] = !e.Gone
			continue
		}
		// The kernel announces a replaced route only by its replacement.
		if _, taken := slices.BinarySearchFunc(h.have.Routes, e.Route,
			rtnetlink.CompareKeys); taken {
			return true
		}
	}
	for r, is := range there {
		if _, was := slices.BinarySearchFunc(h.have.Routes, r, rtnetlink.CompareRoutes); was != is {
			return true
		}
	}

	return false
}
