package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// candidate is a node that may enter the table.
type candidate struct {
	Node              // canonical; addresses and prefixes that may be believed
	problems []string // why the node, or its claim, may not be believed

	second   bool // of its name
	accepted bool // by step 1

	closed []netip.Addr        // addresses that are refused and closed to pods
	yields map[netip.Addr]bool // addresses that it listed as contested
}

// Resolve decides what to believe of state. It is pure; the order of state.Nodes
// does not matter, and resolving the same state again with the result as lastGood
// gives the same table. lastGood may be nil. The result may share memory with the arguments:
// states and tables are values that never change. Refusals are sorted.
//
// In three steps:
//
//  1. Pod prefixes, node by node (check, acceptNodes). A node with a bad prefix, or with
//     one that a node accepted before it holds, is refused as a whole: no peer at all.
//  2. Addresses, one by one (checkAddrs, acceptAddrs). An address that is refused, or that
//     another node has or lists too, is not assigned to the node; the node stays.
//  3. Claims of the nodes accepted in 1. A claim that is bad in itself (checkClaim) or
//     repeats a key is refused: the node counts as one without a claim (Table.Keyless).
//
// In steps 1 and 3 this node comes first. Next come the nodes that claim nothing from an incumbent,
// the oldest first. An incumbent is a node that has something in lastGood and still claims it. All
// others come last. So a node that only holds what it held can lose nothing to any other, and among
// newcomers age decides, then name. The holder keeps what a refused node contests. The addresses of
// a refused node go to NodeAddrs (see checkAddrs).
//
// A node without a claim keeps the claim that lastGood has for the same Node: deleting the Node
// revokes its key. Until state is synced, facts of lastGood that state lacks are kept: nodes,
// claims, addresses, API servers, and contested addresses.
func Resolve(rules Rules, state State, lastGood *Table) (Table, []Refusal) {
	if lastGood == nil {
		lastGood = &Table{}
	}
	r := resolver{rules: rules, kept: map[string]bool{}, last: lastNodes(*lastGood),
		lastAddrs: canonicalAddrs(lastGood.NodeAddrs)}
	r.apiServers = canonicalAddrs(state.APIServers)
	if !state.Synced || len(r.apiServers) == 0 {
		// No API servers means that their list has not arrived yet.
		r.apiServers = canonicalAddrs(slices.Concat(r.apiServers, lastGood.APIServers))
	}
	if !state.Synced {
		r.contested = lastContested(r.last)
	}
	candidates := r.candidates(state)
	accepted := r.acceptNodes(candidates)
	r.acceptAddrs(candidates)
	r.acceptClaims(accepted)

	t := Table{Revision: state.Revision, APIServers: r.apiServers}
	for _, c := range accepted {
		switch {
		case c.Name == rules.Self:
			t.Self = &c.Node
		case c.Claim != nil:
			t.Peers = append(t.Peers, c.Node)
		default:
			t.Keyless = append(t.Keyless, c.Node)
		}
	}
	slices.SortFunc(t.Peers, compareNames)
	slices.SortFunc(t.Keyless, compareNames)
	if !state.Synced {
		r.addrs = append(r.addrs, r.orphans()...)
	}
	t.NodeAddrs = canonicalAddrs(r.addrs)
	slices.SortFunc(r.refusals, func(a, b Refusal) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Reason, b.Reason))
	})
	return t, r.refusals
}

// resolver is the state of one call of Resolve.
type resolver struct {
	rules      Rules
	last       map[string]Node // the owners in lastGood
	lastAddrs  []netip.Addr    // Table.NodeAddrs of lastGood
	apiServers []netip.Addr
	kept       map[string]bool     // nodes whose claim is the one in lastGood
	contested  map[netip.Addr]bool // unassigned until all nodes are listed
	addrs      []netip.Addr        // the future NodeAddrs
	refusals   []Refusal
}

func lastNodes(t Table) map[string]Node {
	last := make(map[string]Node, len(t.Keyless)+len(t.Peers)+1)
	for _, list := range [][]Node{t.Keyless, t.Peers} {
		for _, n := range list {
			last[n.Name] = canonical(n)
		}
	}
	if t.Self != nil {
		last[t.Self.Name] = canonical(*t.Self)
	}
	return last
}

// bySeniority orders nodes: this one first, then by age.
func (r *resolver) bySeniority(a, b *candidate) int {
	switch self := r.rules.Self; {
	case a.Name == self && b.Name != self:
		return -1
	case a.Name != self && b.Name == self:
		return 1
	}
	return compareAge(&a.Node, &b.Node)
}

// candidates returns a checked candidate for each node, by seniority.
func (r *resolver) candidates(state State) []*candidate {
	out := make([]*candidate, 0, len(state.Nodes))
	named := make(map[string]bool, len(state.Nodes))
	for _, n := range state.Nodes {
		n = canonical(n)
		// A key lives as long as its Node: deleting a VeilNode, or all of them with their
		// definition, removes no peer.
		if last, ok := r.last[n.Name]; ok && n.Claim == nil && (!state.Synced ||
			n.Created.Equal(last.Created)) {
			n.Claim = last.Claim
			r.kept[n.Name] = true
		}
		named[n.Name] = true
		out = append(out, &candidate{Node: n})
	}

	if !state.Synced {
		for name, n := range r.last {
			if !named[name] {
				out = append(out, &candidate{Node: n})
			}
		}
	}

	slices.SortFunc(out, r.bySeniority)
	taken := make(map[string]bool, len(out))
	for _, c := range out {
		r.check(c)
		if taken[c.Name] {
			c.second = true
			c.problems = append(c.problems,
				"there is another node of this name, which is older; delete this one")
		}
		taken[c.Name] = true
		r.refuseAll(c)
	}

	return out
}

func (r *resolver) refuseAll(c *candidate) {
	for _, p := range c.problems {
		r.refusals = append(r.refusals, Refusal{Node: c.Name, Reason: p})
	}
}

// inOrder puts newcomers last: candidates that claim what lastGood assigns to another node.
// Candidates are sorted by seniority and stay so. This node does not count as a newcomer.
func (r *resolver) inOrder(candidates []*candidate, newcomer func(c *candidate) bool) []*candidate {
	var before, after []*candidate
	for _, c := range candidates {
		if c.Name != r.rules.Self && newcomer(c) {
			after = append(after, c)
		} else {
			before = append(before, c)
		}
	}
	return append(before, after...)
}

// acceptNodes is step 1 of Resolve. This node is accepted with the sound part of its claims.
func (r *resolver) acceptNodes(candidates []*candidate) []*candidate {
	candidates = slices.DeleteFunc(slices.Clone(candidates), func(c *candidate) bool {
		return c.second || len(c.problems) > 0 && c.Name != r.rules.Self
	})

	// This node comes first and so reserves all that it claims.
	reserved := newHolding()
	for _, c := range candidates {
		last := r.last[c.Name]
		for _, p := range c.PodPrefixes {
			// A part of its former prefix still belongs to it.
			if slices.ContainsFunc(last.PodPrefixes,
				func(l netip.Prefix) bool { return covers(l, p) }) || c.Name == r.rules.Self {
				reserved.takePrefix(p, c.Name)
			}
		}
	}

	order := r.inOrder(candidates, func(c *candidate) bool {
		return len(prefixConflicts(reserved, c.Node)) > 0
	})
	held := newHolding()
	byName := map[string]*candidate{}

	var accepted []*candidate
	for _, c := range order {
		if conflicts := prefixConflicts(held, c.Node); len(conflicts) > 0 {
			for _, x := range conflicts {
				r.refuse(c.Node, byName[x.holder].Node, "it claims "+x.what,
					"delete the Node that has no right to it")
			}
			continue
		}
		for _, p := range c.PodPrefixes {
			held.takePrefix(p, c.Name)
		}
		byName[c.Name] = c
		c.accepted = true
		accepted = append(accepted, c)
	}

	slices.SortFunc(accepted, r.bySeniority)
	return accepted
}

// acceptClaims is step 3 of Resolve: it removes the claims that are not believed.
func (r *resolver) acceptClaims(nodes []*candidate) {
	var claimed []*candidate
	reserved := newHolding()
	for _, c := range nodes {
		if c.Claim == nil {
			continue
		}

		if c.Name != r.rules.Self {
			if c.problems = checkClaim(c.Node); len(c.problems) > 0 {
				if !r.kept[c.Name] {
					r.refuseAll(c)
				}
				c.Claim = nil
				continue
			}
		}

		claimed = append(claimed, c)
		last := r.last[c.Name]
		for _, k := range c.Claim.Keys {
			held := last.Claim != nil && slices.ContainsFunc(last.Claim.Keys,
				func(l Key) bool { return l.Public == k.Public })
			if held || c.Name == r.rules.Self {
				reserved.takeKey(k.Public, c.Name)
			}
		}
	}

	order := r.inOrder(claimed, func(c *candidate) bool {
		return len(keyConflicts(reserved, c.Node)) > 0
	})
	held := newHolding()
	byName := map[string]*candidate{}
	for _, c := range order {
		if conflicts := keyConflicts(held, c.Node); len(conflicts) > 0 {
			for _, x := range conflicts {
				r.refuse(c.Node, byName[x.holder].Node, "its VeilNode claims "+x.what,
					"delete the VeilNode that has no right to it; its node then publishes "+
						"a new one")
			}
			c.Claim = nil
			continue
		}
		for _, k := range c.Claim.Keys {
			held.takeKey(k.Public, c.Name)
		}
		byName[c.Name] = c
	}
}

// conflict is something that one node claims and another node holds.
type conflict struct{ holder, what string }

func prefixConflicts(h *holding, n Node) (out []conflict) {
	for _, p := range n.PodPrefixes {
		for _, o := range h.overlaps(p) {
			if o.node != n.Name {
				out = append(out, conflict{o.node,
					fmt.Sprintf("the pod prefix %s, of which %s", p, o.prefix)})
			}
		}
	}
	return out
}

func keyConflicts(h *holding, n Node) (out []conflict) {
	for _, k := range n.Claim.Keys {
		if holder := h.key(k.Public); holder != "" && holder != n.Name {
			out = append(out, conflict{holder, fmt.Sprintf("the public key %s, which", k.Public)})
		}
	}
	return out
}

// refuse records that n lost something to incumbent.
func (r *resolver) refuse(n, incumbent Node, what, advice string) {
	_, before := r.last[incumbent.Name]
	why := "has the name that sorts first"
	switch {
	case incumbent.Name == r.rules.Self:
		why = "is this node itself"
	case before:
		why = "was in the last good table"
	case incumbent.Created.Before(n.Created):
		why = "is older"
	}
	r.refuseFor(n, incumbent, what, why, advice)
}

func (r *resolver) refuseFor(n, incumbent Node, what, why, advice string) {
	r.refusals = append(r.refusals, Refusal{
		Node:      n.Name,
		Incumbent: incumbent.Name,
		Reason:    fmt.Sprintf("%s is held by %s, which %s; %s", what, incumbent.Name, why, advice),
	})
}

// orphans returns the node addresses of last that stay closed although no known node holds them.
// Evidence about gateways and API servers opens none of them.
func (r *resolver) orphans() (out []netip.Addr) {
	for _, a := range r.lastAddrs {
		if checkAddr(a, r.rules) == "" {
			out = append(out, a)
		}
	}
	return out
}
