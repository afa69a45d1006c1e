package chains

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// Names of counters, and of the chains in which packets are dropped.
var (
	pending   = policy.DenyPending.String()
	midstream = policy.DenyMidstream.String()
	denied    = map[policy.Direction]string{policy.Ingress: policy.DenyIngress.String(),
		policy.Egress: policy.DenyEgress.String()}
	admin    = policy.DenyAdmin.String()
	baseline = policy.DenyBaseline.String()
	unknown  = policy.DenyUnknownPeer.String()
	foreign  = policy.DenyRelated.String()
)

// Priorities. Postrouting comes before all source NAT (100) and after destination NAT. Input comes
// after IPVS (98 and 99).
const (
	priorityPost  = 95
	priorityInput = 101
)

// Chain is a chain of a table. A chain without a hook is reached from other chains only.
type Chain struct {
	Hook     *nftables.ChainHook
	Priority nftables.ChainPriority
	// make makes the rules. They are made on demand, because there are many and only writing and
	// comparing needs them.
	make func(*Fragments) []Rule
	// refer holds the sets that the rules look up. The references of both families are in the chain
	// of the first family.
	refer sets.References
	// texts is the digest of the rules' texts; nil until the rules were made.
	texts *Digest
	// lines is the number of lines from which the chain was made; 0 for a chain whose content does
	// not follow from its name.
	lines int
}

// Rules makes the rules of the chain.
func (c *Chain) Rules(cached *Fragments) []Rule {
	rules := c.make(cached)
	if c.texts == nil {
		c.texts = &Digest{}
		for _, r := range rules {
			c.texts.Add([]byte(r.Text))
		}
	}
	return rules
}

// Summary describes the chain as a read of the kernel does.
func (c *Chain) Summary(cached *Fragments) Summary {
	if c.texts == nil {
		c.Rules(cached)
	}
	return Summary{Hook: c.HookText(), Texts: *c.texts}
}

// HookText describes the hook of the chain. It returns "" for a chain without a hook.
func (c *Chain) HookText() string {
	if c.Hook == nil {
		return ""
	}
	return HookText(uint32(*c.Hook), int32(c.Priority))
}

// HookText describes a hook by its number and a priority.
func HookText(number uint32, priority int32) string {
	return fmt.Sprintf("hook %d priority %d", number, priority)
}

// Summary holds the properties of a chain that are compared.
type Summary struct {
	Hook  string
	Texts Digest
}

// Digest is a hash of the texts of a chain's rules, in their order. The zero value stands for no
// rules.
type Digest [sha256.Size]byte

// Add adds the text of the next rule.
func (d *Digest) Add(text []byte) {
	b := make([]byte, 0, 256)
	*d = sha256.Sum256(append(append(b, d[:]...), text...))
}

// Sets returns the names in the kernel of the sets that the chains of a group look up. The group is
// of the last plan.
func (p *Maker) Sets(g *policy.Group) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, d := range directions {
			name := chainPrefix[d] + g.Chains[d] + families[0].Suffix
			for _, c := range []*Chain{p.chains[name], p.chains[name+behindAdmin]} {
				if c == nil {
					continue
				}
				for set := range c.refer.Names() {
					if !yield(set) {
						return
					}
				}
			}
		}
	}
}

var directions = []policy.Direction{policy.Ingress, policy.Egress}

// chainPrefix is the prefix of the name of a plan's chain for one direction.
var chainPrefix = map[policy.Direction]string{policy.Ingress: "in_", policy.Egress: "out_"}

// Maker makes the chains of plans, and keeps the chains that did not change since the last plan.
// The zero value is ready.
type Maker struct {
	// Boxed makes the Maker turn all lines that can be boxes into boxes, for tests.
	Boxed bool
	// groups holds the plan's groups that already have chains, keyed by name.
	groups map[string]*policy.Group
	chains map[string]*Chain
	// spare holds chains that the plan does not need, for a plan that does (spare.go). spareLines
	// is the number of their lines.
	spare      map[string]*Chain
	spareLines int
	refer      sets.Counts
	// options are the options of the plan that chains were made for.
	options policy.Options
}

// Make returns the chains for a plan by their names in the kernel, and the sets that their rules
// look up. remade reports whether they differ from the last result. Groups of the same name have
// the same chains and look up the same sets.
func (p *Maker) Make(plan *policy.Plan) (chains map[string]*Chain, refer *sets.Counts,
	remade bool) {
	if p.options != plan.Options {
		p.chains, p.refer, p.options = nil, sets.Counts{}, plan.Options
		p.Forget()
	} else if p.chains != nil && maps.Equal(p.groups, plan.Groups) {
		return p.chains, &p.refer, false
	}

	w := &chainWriter{plan: plan, boxed: p.Boxed, old: p.known, chains: map[string]*Chain{}}
	w.addGroups()
	w.addHooks()
	for name, c := range w.chains {
		if p.chains[name] != c {
			p.refer.Add(c.refer)
		}
	}
	for name, c := range p.chains {
		if w.chains[name] != c {
			p.refer.Remove(c.refer)
			p.keep(name, c)
		}
	}
	p.groups, p.chains = plan.Groups, w.chains
	return p.chains, &p.refer, true
}
