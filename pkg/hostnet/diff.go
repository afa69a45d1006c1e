package hostnet

import (
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/tables"
)

// Op is one change of the kernel's state. String describes it in one line.
type Op interface {
	fmt.Stringer
	apply(h *Host) error
	phase() phase
}

// phase orders changes so that no packet leaves in clear after any of them.
type phase int

const (
	// phaseClose adds the unreachable routes, which packets use if all other routes are missing.
	phaseClose phase = iota
	phaseRule
	phaseSetting
	phaseDevice
	phaseTunnel
	phaseTable
	// The following phases remove: first the tunnel routes, last the unreachable routes.
	phaseUntunnel
	phaseUnrule
	phaseUnclose
)

// Diff returns the changes that turn have into want, in order. It keeps settings of links that are
// not in want, forwarding that is on, and fwmark_reflect that another owner set. Both States are in
// canonical order, as Read and Plan return them.
func Diff(have, want State) []Op {
	devices := diffDevices(have.Devices, want.Devices)
	ops := diffRoutes(have.Routes, want.Routes)
	ops = append(ops, diffRules(have.Rules, want.Rules)...)
	ops = append(ops, diffSettings(have, want)...)
	for _, d := range devices {
		ops = append(ops, d)
	}
	if have.Outer != want.Outer {
		ops = append(ops, tableOp{tables.Outer(want.OuterPort), want.Outer != ""})
	}
	if have.NAT != want.NAT {
		ops = append(ops, tableOp{tables.NAT(), want.NAT != ""})
	}
	ops = append(ops, diffFlows(have, want, devices)...)
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.phase() - b.phase()) })
	return ops
}

// diffRoutes compares two lists in canonical order, one route identity after another.
func diffRoutes(have, want []rtnetlink.Route) []Op {
	var ops []Op
	for h, w := range rtnetlink.ByKey(have, want) {
		ops = append(ops, diffSame(h, w)...)
	}
	return ops
}

// diffSame compares routes of one identity. At most one is wanted, but the kernel may have several.
// After a replacement, superfluous routes may be left, which the next Read finds.
func diffSame(have, want []rtnetlink.Route) []Op {
	if len(want) > 0 && !slices.Contains(have, want[0]) {
		if len(have) > 0 {
			return []Op{routeOp{verbReplace, want[0]}}
		}
		return []Op{routeOp{verbAdd, want[0]}}
	}
	var ops []Op
	for _, r := range have {
		if !slices.Contains(want, r) {
			ops = append(ops, routeOp{verbDelete, r})
		}
	}
	return ops
}

func diffRules(have, want []Rule) []Op {
	var ops []Op
	// Add in reverse order, so that the rule that denies outer packets exists before the rule that
	// routes them.
	for _, r := range slices.Backward(want) {
		if !slices.Contains(have, r) {
			ops = append(ops, ruleOp{verbAdd, r})
		}
	}
	for _, r := range have {
		if !slices.Contains(want, r) {
			ops = append(ops, ruleOp{verbDelete, r})
		}
	}
	return ops
}

func diffSettings(have, want State) []Op {
	var ops []Op
	if want.Forward4 && !have.Forward4 {
		ops = append(ops, settingOp{forward4Path, "1"})
	}
	if want.Forward6 && !have.Forward6 {
		for _, link := range have.RALinks {
			ops = append(ops, settingOp{acceptRAPath(link), "2"})
		}
		ops = append(ops, settingOp{forward6Path, "1"})
	}
	ops = append(ops, diffReflect(reflect4Path, have.Reflect4, want.Reflect4)...)
	return append(ops, diffReflect(reflect6Path, have.Reflect6, want.Reflect6)...)
}

func diffReflect(path string, have, want int) []Op {
	if to := reflectAfter(have, want); to != have {
		return []Op{settingOp{path, fmt.Sprint(to)}}
	}
	return nil
}

// reflectAfter returns the value of fwmark_reflect after Apply. A value of another owner is kept.
func reflectAfter(have, want int) int {
	if have != 0 && have != reflectOurs {
		return have
	}
	return want
}

func diffDevices(have, want []Device) []deviceOp {
	var ops []deviceOp
	for _, w := range want {
		i := slices.IndexFunc(have, func(d Device) bool { return d.Name == w.Name })
		if i < 0 {
			continue
		}
		if w.MTU == 0 {
			w.MTU = have[i].MTU
		}
		if have[i] != w {
			ops = append(ops, deviceOp{have[i], w})
		}
	}
	return ops
}

// verb is the change of a route or rule.
type verb string

const (
	verbAdd     verb = "add"
	verbReplace verb = "replace"
	verbDelete  verb = "delete"
)

type routeOp struct {
	verb  verb
	route rtnetlink.Route
}

func (o routeOp) String() string { return fmt.Sprintf("%s route %s", o.verb, o.route) }

func (o routeOp) phase() phase {
	switch {
	case o.verb == verbDelete && o.route.Unreachable():
		return phaseUnclose
	case o.verb == verbDelete:
		return phaseUntunnel
	case o.route.Unreachable():
		return phaseClose
	}
	return phaseTunnel
}

type ruleOp struct {
	verb verb
	rule Rule
}

func (o ruleOp) String() string { return fmt.Sprintf("%s rule %s", o.verb, o.rule) }

func (o ruleOp) phase() phase {
	if o.verb == verbDelete {
		return phaseUnrule
	}
	return phaseRule
}

type settingOp struct{ path, value string }

func (o settingOp) String() string { return fmt.Sprintf("set %s to %s", o.path, o.value) }
func (o settingOp) phase() phase   { return phaseSetting }

type deviceOp struct{ have, want Device }

func (o deviceOp) String() string { return fmt.Sprintf("set device %s (was: %s)", o.want, o.have) }
func (o deviceOp) phase() phase   { return phaseDevice }

type tableOp struct {
	table *nft.Table
	want  bool
}

func (o tableOp) String() string {
	if !o.want {
		return "delete nft table " + o.table.Name
	}
	return "replace nft table " + o.table.Name
}
func (o tableOp) phase() phase { return phaseTable }

// diffFlows returns the changes of the flow tables. They are replaced, which ends all entries, if
// the MTU of a link changed, because entries store it. They are also replaced if a link is gone,
// because since Linux 6.16 its name stays in the list.
func diffFlows(have, want State, devices []deviceOp) []Op {
	if want.Flows == "" {
		if have.Flows == "" {
			return nil
		}
		var ops []Op
		for _, t := range flowtable.Tables(nil) {
			ops = append(ops, tableOp{t, false})
		}
		return ops
	}
	anew := have.Flows != want.Flows || len(flowtable.Without(have.Joined, have.Joins)) > 0
	for _, d := range devices {
		anew = anew || d.have.MTU != d.want.MTU
	}
	if anew {
		return []Op{flowsOp{have.Joins, true}}
	}
	if missing := flowtable.Without(have.Joins, have.Joined); len(missing) > 0 {
		return []Op{flowsOp{missing, false}}
	}
	return nil
}

// flowsOp replaces the flow tables, or only adds links to them.
type flowsOp struct {
	joins []flowtable.Join
	anew  bool
}

func (o flowsOp) String() string {
	if o.anew {
		return fmt.Sprintf("replace nft tables %v", flowtable.Names)
	}
	var links []string
	for _, j := range o.joins {
		links = append(links, j.Link)
	}
	return fmt.Sprintf("add links %v to the flow tables", slices.Compact(links))
}

func (o flowsOp) phase() phase { return phaseTable }

func (o flowsOp) apply(h *Host) error {
	h.flows.Make(o.joins, o.anew)
	return nil
}
