package chains

import (
	"cmp"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// The name of a plan's chain stands for its content. So a Maker can have a chain of the kernel from
// an earlier plan, or from a plan to come that another goroutine prepares.

// maxSpare bounds the lines of the chains that a Maker keeps for other plans. Beyond it the Maker
// forgets all of them, and makes again what it needs.
const maxSpare = 1 << 17

// Prepare makes the chains of groups that plan has, and the sets that their rules look up. They are
// for Keep. It is pure, unlike Make. The plan needs its groups, chains, options and blocks only. It
// may lack chains, which are then not made. boxed is Boxed of the Maker.
func Prepare(plan *policy.Plan, boxed bool) (chains map[string]*Chain, refer *sets.Counts) {
	w := &chainWriter{plan: plan, boxed: boxed, old: func(string) *Chain { return nil },
		chains: map[string]*Chain{}}
	w.addGroups()
	refer = &sets.Counts{}
	for _, c := range w.chains {
		refer.Add(c.refer)
	}
	return w.chains, refer
}

// Keep keeps chains for the plans to come, until Forget. All must be made for the options of these
// plans.
func (p *Maker) Keep(chains map[string]*Chain) {
	for name, c := range chains {
		if p.chains[name] == nil {
			p.keep(name, c)
		}
	}
}

// Forget forgets the chains that the last plan does not need.
func (p *Maker) Forget() { p.spare, p.spareLines = nil, 0 }

func (p *Maker) keep(name string, c *Chain) {
	if c.lines == 0 || p.spare[name] != nil {
		return
	}
	if p.spareLines += c.lines; p.spare == nil || p.spareLines > maxSpare {
		p.spare, p.spareLines = map[string]*Chain{}, c.lines
	}
	p.spare[name] = c
}

// known returns a chain of the last plan or one that was kept, or nil.
func (p *Maker) known(name string) *Chain { return cmp.Or(p.chains[name], p.spare[name]) }
