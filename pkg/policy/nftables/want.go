package nftables

import (
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// content is the wanted content of the table, by the names in the kernel.
type content struct {
	chains map[string]*chains.Chain
	sets   map[string]*sets.Set
}

// maker makes the content for a plan. The zero value is ready.
type maker struct {
	chains chains.Maker
	sets   sets.Maker
}

// want returns the content of the table for a plan. The result is valid until the next call.
func (p *maker) want(plan *policy.Plan) *content {
	made, refer, remade := p.chains.Make(plan)
	return &content{made, p.sets.Make(plan, refer, remade)}
}

// Prepared holds parts of the table's content for a plan to come. Make it with Prepare.
type Prepared struct {
	chains map[string]*chains.Chain
	sets   sets.Lasting
}

// Prepare makes the chains of a plan's groups, and those of their sets that do not depend on pods.
// For groups with thousands of lines that takes a tenth of a second, so another goroutine may call
// it. The plan needs only its groups, chains, options and blocks. Chains that it lacks are left
// out.
func Prepare(plan *policy.Plan) *Prepared {
	made, refer := chains.Prepare(plan, false)
	return &Prepared{made, sets.MakeLasting(refer, plan.Sets)}
}

// keptParts is the number of calls of Part for which the table keeps what was prepared.
const keptParts = 8

// Keep keeps what was prepared until one of the next plans needs it. The content depends on names
// alone, so the plans need not be the one that it was made of.
func (t *PolicyTable) Keep(p *Prepared) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.maker.chains.Boxed {
		t.maker.chains.Keep(p.chains)
		t.maker.sets.Keep(p.sets)
		t.keeps = keptParts
	}
}

// restLocked forgets what only other plans than the last one need, unless one of them is to come.
func (t *PolicyTable) restLocked() {
	if len(t.ahead.goals)+len(t.ahead.waiting)+t.keeps == 0 {
		t.maker.chains.Forget()
		t.maker.sets.Forget()
	}
}
