package sets

import (
	"maps"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Maker makes the sets of plans, and keeps the sets that did not change since the last plan. The
// zero value is ready.
type Maker struct {
	// refer holds the sets that rules look up.
	refer *Counts
	// sets holds the sets of peers, unions and boxes, by their names without the suffix of a
	// family. They were made from the plan's sets in from. dependents holds, by the name of a set
	// of the plan, the names of the sets that contain it.
	sets       map[string]*made
	from       policy.SetMap
	dependents map[string][]string
	// lasting holds sets of blocks that the plan does not need, for a plan that does (lasting.go).
	// lastingSize is the number of their elements.
	lasting     Lasting
	lastingSize int
	// members holds the sets of makeMembers. They were made from the plan membersOf.
	members   map[string]*Set
	membersOf policy.Plan
	// inside holds the sets of makeInside. They were made from the plan insideOf.
	inside   map[string]*Set
	insideOf policy.Plan
	// all is the last result of Make.
	all map[string]*Set
}

// made holds a set of the kernel for each family, or nil for a family without one. A union has a
// part for each of its peers. A set of boxes of pods has a part for each partLines lines.
type made struct{ byFamily []*Set }

// Make returns the sets for a plan by their names in the kernel, until the next call. refer holds
// the sets that rules look up; remade reports whether it has changed. Make takes time in proportion
// to the sets of the kernel, and to the plan's sets that changed.
func (p *Maker) Make(plan *policy.Plan, refer *Counts, remade bool) map[string]*Set {
	p.refer = refer
	changed, known := plan.Sets.ChangedSince(p.from)
	if remade || !known {
		p.keepSets(plan.Sets)
	} else {
		p.remakeSets(plan.Sets, changed)
	}
	p.from = plan.Sets

	if p.all == nil {
		p.all = map[string]*Set{}
	}
	clear(p.all)
	for name, m := range p.sets {
		for i, f := range Families {
			if m.byFamily[i] != nil {
				p.all[name+f.Suffix] = m.byFamily[i]
			}
		}
	}
	maps.Copy(p.all, refer.ports)
	p.makeMembers(plan)
	maps.Copy(p.all, p.members)
	p.makeInside(plan)
	maps.Copy(p.all, p.inside)
	return p.all
}
