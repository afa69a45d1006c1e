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
