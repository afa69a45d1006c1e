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
	Node              // in canonical form, reduced to addresses and prefixes that may be believed
	problems []string // reasons why the node or its claim is refused

	second   bool // an older node has the same name
	accepted bool // by step 1 of Resolve

	closed []netip.Addr        // refused addresses that stay unreachable for pods
	yields map[netip.Addr]bool // addresses that it has only as contested
}

// Resolve decides which claims in state to believe. It is pure. The order of state.Nodes does not
// matter. Resolving the same state again, with the result as lastGood, returns the same table.
// lastGood may be nil. The result may share memory with the arguments, because states and tables
// never change. Refusals are sorted.
//
// Resolve has three steps:
//
//  1. Pod prefixes, node by node (check, acceptNodes). A node is refused as a whole, and does not
//     become a peer, if a prefix is invalid or overlaps a prefix of an accepted node.
//  2. Addresses, one by one (checkAddrs, acceptAddrs). An address is not assigned to the node if it
//     is refused, or if another node has it or lists it too. The node itself stays accepted.
//  3. Claims of the nodes that step 1 accepted. A claim is refused if it is invalid (checkClaim),
//     or has a key of another node. The node then counts as one without a claim (Table.Keyless).
//
// Steps 1 and 3 process this node first. Then follow the nodes that claim nothing from an
// incumbent, oldest first. An incumbent is a node that has something in lastGood and still claims
// it. The other nodes come last. So a node that only claims what it had cannot lose it to another
// node. Among newcomers age decides, then name. Nodes of sites follow all others, and are judged by
// the ranges of their site, so they do not change what is decided about others. The addresses of a
// refused node go to NodeAddrs (see checkAddrs).
//
// A node without a claim keeps its claim in lastGood, as long as it is the same Node object. So
// deleting the Node object revokes its key. Until state is synced, Resolve keeps everything in
// lastGood that state lacks: nodes, claims, addresses, API servers, and contested addresses.
func Resolve(rules Rules, state State, lastGood *Table) (Table, []Refusal) {
	if lastGood == nil {
		lastGood = &Table{}
	}
	r := resolution{rules: rules, last: lastNodes(*lastGood),
		lastAddrs: canonicalAddrs(lastGood.NodeAddrs), apiServers: servers(state, *lastGood)}
	return r.resolve(state)
}

// servers returns the API servers of state, sorted. No API servers means that their list has not
// arrived yet.
func servers(state State, lastGood Table) []netip.Addr {
	listed := canonicalAddrs(state.APIServers)
	if !state.Synced || len(listed) == 0 {
		return canonicalAddrs(slices.Concat(listed, lastGood.APIServers))
	}
	return listed
}

// resolve does the steps of Resolve for state.
func (r *resolution) resolve(state State) (Table, []Refusal) {
	r.kept = map[string]bool{}
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
		case c.Name == r.rules.Self:
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
	slices.SortFunc(r.refusals, compareRefusals)
	return t, r.refusals
}

func compareRefusals(a, b Refusal) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Reason, b.Reason))
}

// resolution is the state of one call of Resolve.
type resolution struct {
	rules      Rules
	last       map[string]Node // the nodes in lastGood, by name
	lastAddrs  []netip.Addr    // Table.NodeAddrs of lastGood, sorted
	apiServers []netip.Addr
	kept       map[string]bool     // nodes whose claim was taken from lastGood
	contested  map[netip.Addr]bool // assigned to no node until all nodes are listed
	addrs      []netip.Addr        // becomes NodeAddrs
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

// bySeniority orders nodes: this one first, then the nodes of this cluster by age, then the nodes
// of sites by age.
func (r *resolution) bySeniority(a, b *candidate) int {
	switch self := r.rules.Self; {
	case a.Name == self && b.Name != self:
		return -1
	case a.Name != self && b.Name == self:
		return 1
	}
	return cmp.Or(compareSites(a, b), compareAge(&a.Node, &b.Node))
}

// candidates returns a checked candidate for each node, sorted by seniority.
func (r *resolution) candidates(state State) []*candidate {
	out := make([]*candidate, 0, len(state.Nodes))
	named := make(map[string]bool, len(state.Nodes))
	for _, n := range state.Nodes {
		n = canonical(n)
		// A claim lives as long as its Node object. So deleting a VeilNode, or all of them with
		// their CustomResourceDefinition, removes no peer.
		if last, ok := r.last[n.Name]; ok && n.Claim == nil && (!state.Synced ||
			n.Created.Equal(last.Created)) {
			n.Claim = last.Claim
			r.kept[n.Name] = true
		}
		named[n.Name] = true
		out = append(out, &candidate{Node: n})
	}

	for name, n := range r.last {
		unlisted := !state.Synced || state.SitesUnlisted && n.Site() != ""
		if unlisted && !named[name] {
			out = append(out, &candidate{Node: n})
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

func (r *resolution) refuseAll(c *candidate) {
	for _, p := range c.problems {
		r.refusals = append(r.refusals, Refusal{Node: c.Name, Reason: p})
	}
}

// inOrder moves candidates for which newcomer is true to the end: they claim what lastGood assigns
// to another node. Otherwise the order stays. This node never counts as a newcomer. All nodes of
// sites follow the nodes of this cluster.
func (r *resolution) inOrder(candidates []*candidate,
	newcomer func(c *candidate) bool) []*candidate {
	var before, after []*candidate
	for _, c := range candidates {
		if c.Name != r.rules.Self && newcomer(c) {
			after = append(after, c)
		} else {
			before = append(before, c)
		}
	}
	order := append(before, after...)
	slices.SortStableFunc(order, compareSites)
	return order
}

// acceptNodes is step 1 of Resolve. This node is always accepted, with the valid part of its
// prefixes.
func (r *resolution) acceptNodes(candidates []*candidate) []*candidate {
	candidates = slices.DeleteFunc(slices.Clone(candidates), func(c *candidate) bool {
		return c.second || len(c.problems) > 0 && c.Name != r.rules.Self
	})

	// This node comes first, so it reserves all its prefixes.
	reserved := newHolding()
	for _, c := range candidates {
		last := r.last[c.Name]
		for _, p := range c.PodPrefixes {
			// A part of a prefix that the node had also belongs to it.
			if slices.ContainsFunc(last.PodPrefixes,
				func(l netip.Prefix) bool { return covers(l, p) }) || c.Name == r.rules.Self {
				reserved.takePrefix(p, c.Name)
			}
		}
	}

	order := r.inOrder(candidates, func(c *candidate) bool {
		return len(rivals(c.Node, prefixConflicts(reserved, c.Node))) > 0
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

// acceptClaims is step 3 of Resolve. It removes refused claims from nodes.
func (r *resolution) acceptClaims(nodes []*candidate) {
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
		return len(rivals(c.Node, keyConflicts(reserved, c.Node))) > 0
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

// conflict is a prefix or key (what) that one node claims and another node (holder) holds.
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

// refuse records that incumbent holds what n claims, with the reason for the decision.
func (r *resolution) refuse(n, incumbent Node, what, advice string) {
	_, before := r.last[incumbent.Name]
	why := "has the name that sorts first"
	switch {
	case incumbent.Name == r.rules.Self:
		why = "is this node itself"
	case n.Site() != "" && incumbent.Site() == "":
		why = "is a node of this cluster"
	case before:
		why = "was in the last good table"
	case incumbent.Created.Before(n.Created):
		why = "is older"
	}
	r.refuseFor(n, incumbent, what, why, advice)
}

func (r *resolution) refuseFor(n, incumbent Node, what, why, advice string) {
	r.refusals = append(r.refusals, Refusal{
		Node:      n.Name,
		Incumbent: incumbent.Name,
		Reason:    fmt.Sprintf("%s is held by %s, which %s; %s", what, incumbent.Name, why, advice),
	})
}

// orphans returns the node addresses of lastGood that stay closed although no known node may hold
// them. Evidence about gateways and API servers does not open them.
func (r *resolution) orphans() (out []netip.Addr) {
	for _, a := range r.lastAddrs {
		if checkAddr(a, r.rules) == "" || r.ofSite(a) {
			out = append(out, a)
		}
	}
	return out
}
