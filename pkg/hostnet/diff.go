package hostnet

import (
	"fmt"
	"slices"
)

// Op is one change. Its String is a line for people.
type Op interface {
	fmt.Stringer
	apply(h *Host) error
	phase() phase
}

// phase orders changes so that no step opens a hole.
type phase int

const (
	// phaseClose adds the unreachable routes beneath, before anything else.
	phaseClose phase = iota
	phaseRule
	phaseSetting
	phaseDevice
	phaseTunnel
	phaseNAT
	// From here on things are taken away, what lies on top first.
	phaseUntunnel
	phaseUnrule
	phaseUnclose
)

// Diff gives what must be done, in this order, for have to become want. Settings
// of links that want does not name stay, as does forwarding that is on.
func Diff(have, want State) []Op {
	ops := diffRoutes(have.Routes, want.Routes)
	ops = append(ops, diffRules(have.Rules, want.Rules)...)
	ops = append(ops, diffSettings(have, want)...)
	ops = append(ops, diffDevices(have.Devices, want.Devices)...)
	if !slices.Equal(have.NAT, want.NAT) {
		ops = append(ops, natOp{want.NAT})
	}
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.phase() - b.phase()) })
	return ops
}

func diffRoutes(have, want []Route) []Op {
	haveSet := make(map[Route]bool, len(have))
	haveKeys := make(map[routeKey]bool, len(have))
	for _, r := range have {
		haveSet[r] = true
		haveKeys[r.key()] = true
	}
	wantSet := make(map[Route]bool, len(want))
	replaced := map[routeKey]bool{}
	var ops []Op
	for _, r := range want {
		wantSet[r] = true
		switch {
		case haveSet[r]:
		case haveKeys[r.key()]:
			replaced[r.key()] = true
			ops = append(ops, routeOp{verbReplace, r})
		default:
			ops = append(ops, routeOp{verbAdd, r})
		}
	}
	for _, r := range have {
		if !wantSet[r] && !replaced[r.key()] {
			ops = append(ops, routeOp{verbDelete, r})
		}
	}
	return ops
}

func diffRules(have, want []Rule) []Op {
	var ops []Op
	// From behind: the rule that denies outer packets is there before the one
	// that it backs.
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
	return ops
}

func diffDevices(have, want []Device) []Op {
	var ops []Op
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

// verb is what is done to a route or rule.
type verb string

const (
	verbAdd     verb = "add"
	verbReplace verb = "replace"
	verbDelete  verb = "delete"
)

type routeOp struct {
	verb  verb
	route Route
}

func (o routeOp) String() string { return fmt.Sprintf("%s route %s", o.verb, o.route) }

func (o routeOp) phase() phase {
	switch {
	case o.verb == verbDelete && o.route.unreachable():
		return phaseUnclose
	case o.verb == verbDelete:
		return phaseUntunnel
	case o.route.unreachable():
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

type natOp struct{ lines []string }

func (o natOp) String() string {
	if o.lines == nil {
		return "delete nft table " + natTable.Name
	}
	return "replace nft table " + natTable.Name
}
func (o natOp) phase() phase { return phaseNAT }
