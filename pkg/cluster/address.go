package cluster

import (
	"fmt"
	"net/netip"
	"slices"
)

// acceptAddrs is step 2 of Resolve. It sets Addresses of each candidate to the addresses that are
// assigned to it. An address that another node has, or lists too, goes to Contested instead.
// NodeAddrs gets every address that passed checkAddrs, whether it is assigned or not.
//
// An address is assigned by the first of these rules that applies:
//
//  1. to this node, if it lists the address;
//  2. to the node, accepted in step 1, that has it in lastGood and still lists it;
//  3. to no node, if two nodes list it, or if lastGood says that two did and not all nodes are
//     listed yet;
//  4. to the one node that lists it.
//
// Age and name do not matter here, because a compromised node is often the older one.
func (r *resolution) acceptAddrs(candidates []*candidate) {
	times := make(map[netip.Addr]int, len(candidates))
	for _, c := range candidates {
		r.checkAddrs(c)
		r.addrs = append(r.addrs, c.Addresses...)
		r.addrs = append(r.addrs, c.closed...)
		if c.second {
			c.Addresses = nil
		}
		for _, a := range c.Addresses {
			times[a]++
		}
	}
	listing := map[netip.Addr][]*candidate{} // of contested addresses
	for _, c := range candidates {
		for _, a := range c.Addresses {
			if times[a] > 1 || r.contested[a] {
				listing[a] = append(listing[a], c)
			}
		}
	}

	for _, c := range candidates {
		listed := c.Addresses
		c.Contested = nil
		if !slices.ContainsFunc(listed, func(a netip.Addr) bool { return listing[a] != nil }) {
			continue
		}
		c.Addresses = nil
		for _, a := range listed {
			if listing[a] == nil {
				c.Addresses = append(c.Addresses, a)
				continue
			}
			holder := r.holder(a, listing[a])
			if holder == c {
				c.Addresses = append(c.Addresses, a)
				continue
			}
			r.loseAddr(c, a, holder, listing[a])
		}
	}
}

// holder returns the node that keeps the contested address a, or nil if no node does.
func (r *resolution) holder(a netip.Addr, listing []*candidate) *candidate {
	own := func(c *candidate) bool { return c.Name == r.rules.Self }
	had := func(c *candidate) bool {
		return c.accepted && slices.Contains(r.last[c.Name].Addresses, a)
	}
	yields := func(c *candidate) bool { return c.yields[a] }
	for _, first := range []func(*candidate) bool{own, had} {
		if i := slices.IndexFunc(listing, first); i >= 0 {
			return listing[i]
		}
	}
	if r.contested[a] {
		return nil
	}
	// Nodes may come from another table. A node that has the address only as contested there loses
	// to a node that has it as its own.
	rest := slices.DeleteFunc(slices.Clone(listing), yields)
	if len(rest) == 1 {
		return rest[0]
	}
	return nil
}

// loseAddr records a refusal: c lists a, which is assigned to holder, or to no node if holder is
// nil.
func (r *resolution) loseAddr(c *candidate, a netip.Addr, holder *candidate, listing []*candidate) {
	what := fmt.Sprintf("it claims the node address %s, which", a)
	const advice = "correct the addresses of the Node that has no right to it (kubelet " +
		"--node-ip), or delete that Node"
	if holder != nil {
		why := "alone has a right to it by the table that this one was read from"
		switch {
		case holder.Name == r.rules.Self:
			why = "is this node itself"
		case slices.Contains(r.last[holder.Name].Addresses, a):
			why = "had it in the last good table"
		}
		r.refuseFor(c.Node, holder.Node, what, why, advice)
		if holder.Name != r.rules.Self {
			c.Contested = append(c.Contested, a)
		}
		return
	}

	c.Contested = append(c.Contested, a)
	others := "another Node did before, and not all are listed yet"
	for _, o := range listing {
		if o != c {
			others = fmt.Sprintf("%s does, too", o.Name)
			break
		}
	}
	r.refusals = append(r.refusals, Refusal{
		Node: c.Name,
		Reason: fmt.Sprintf("it claims the node address %s, and %s: it belongs to no node, and pods "+
			"do not reach it; %s", a, others, advice),
	})
}

// lastContested returns the addresses that were contested in last and assigned to no node.
func lastContested(last map[string]Node) map[netip.Addr]bool {
	contested, held := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, n := range last {
		for _, a := range n.Addresses {
			held[a] = true
		}
	}
	for _, n := range last {
		for _, a := range n.Contested {
			if !held[a] {
				contested[a] = true
			}
		}
	}
	return contested
}
