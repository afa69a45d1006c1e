package planner

import (
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// The kernel holds the elements of a set of peers once for the rules that look it up alone. It
// holds a copy in each union and for each box that contains the set. The budget of elements counts
// these copies: policies that select pods by few sets in many combinations need many elements.

// copies are the elements that a chain adds to the kernel besides the sets of its peers.
type copies struct {
	// unions are the names of the sets of each union, joined by spaces. Chains share unions.
	unions []string
	// boxed are the sets whose addresses a set of boxes copies, once for each box.
	boxed []string
	// blocks is the number of boxes that the blocks make. crossing reports whether they are more
	// than arrange.MaxBoxes in one family.
	blocks   int
	crossing bool
}

// copiesOf returns the copies of a chain with these lines. defs holds the blocks of its peers.
func copiesOf(lines []policy.Line, defs map[string]*compile.Definition) (c copies) {
	a := arrange.Arrange(lines, false)
	for _, boxes := range blockBoxes(a.Boxes[arrange.BoxBlocks], defs) {
		n := arrange.Pieces(boxes)
		c.blocks += n
		c.crossing = c.crossing || n > arrange.MaxBoxes
	}
	for _, g := range a.Grants {
		if len(g.Peers) > 1 {
			c.unions = append(c.unions, strings.Join(g.Peers, " "))
		}
	}
	for _, kind := range []arrange.BoxKind{arrange.BoxPods, arrange.BoxPodRanges} {
		for _, l := range a.Boxes[kind] {
			c.boxed = append(c.boxed, l.Peer)
		}
	}
	return c
}

// chainParts are the sets in which a chain looks up packets, and its copies.
type chainParts struct {
	peers  []string
	copies copies
}

// partsOf returns the parts of a new chain.
func (p *Planner) partsOf(chain string) chainParts {
	if parts, has := p.parts[chain]; has {
		return parts
	}
	for _, d := range p.adopted {
		if parts, has := d.planner.parts[chain]; has {
			return parts
		}
	}
	c := p.chains[chain]
	p.parts[chain] = chainParts{peersOf(c), copiesOf(c.Lines, p.defs)}
	return p.parts[chain]
}

// copyCounts counts the copies of all chains.
type copyCounts struct {
	byChain map[string]copies
	// unions counts the chains of each union; sets counts the copies of each set.
	unions, sets map[string]int
	blocks       int
}

func newCopyCounts() copyCounts {
	return copyCounts{byChain: map[string]copies{}, unions: map[string]int{}, sets: map[string]int{}}
}

// elements returns an upper bound of the elements that the kernel holds for a set of this name and
// size.
func (n *copyCounts) elements(set string, size int) int { return size * (1 + n.sets[set]) }

// countCopies adds the copies of a chain, or subtracts them if by is -1. It updates lastElements.
func (p *Planner) countCopies(chain string, by int) {
	n := &p.copies
	c := n.byChain[chain]
	n.blocks += by * c.blocks
	p.lastElements += by * c.blocks
	for _, union := range c.unions {
		was := n.unions[union]
		if n.unions[union] += by; n.unions[union] == 0 {
			delete(n.unions, union)
		}
		if was == 0 || was+by == 0 {
			for set := range strings.SplitSeq(union, " ") {
				p.countCopy(set, by)
			}
		}
	}
	for _, set := range c.boxed {
		p.countCopy(set, by)
	}
}

// copied returns the number of elements in the copies of chains, by the namespace of the chains and
// by the policies that are in the chains.
func (p *Planner) copied() (byNamespace map[string]int, byPolicy map[policy.Name]int) {
	byNamespace, byPolicy = map[string]int{}, map[policy.Name]int{}
	seen := map[string]bool{}
	for key, m := range p.members {
		for _, chain := range p.groups[m.Group].Chains {
			c := p.copies.byChain[chain]
			if id := key.Namespace + " " + chain; seen[id] {
				continue
			} else {
				seen[id] = true
			}

			n := c.blocks
			for _, set := range slices.Concat(c.boxed, strings.Fields(strings.Join(c.unions, " "))) {
				n += p.lastSets.Get(set).Size()
			}
			byNamespace[key.Namespace] += n
			for _, name := range m.Policies {
				byPolicy[name] += n
			}
		}
	}
	return byNamespace, byPolicy
}

func (p *Planner) countCopy(set string, by int) {
	if p.copies.sets[set] += by; p.copies.sets[set] == 0 {
		delete(p.copies.sets, set)
	}
	p.lastElements += by * p.lastSets.Get(set).Size()
}
