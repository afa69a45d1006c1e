package cluster

import (
	"maps"
	"net/netip"
	"slices"
)

// Resolver resolves the successive states of a cluster. Each result equals the result of Resolve
// for the same arguments. A Resolver decides again only about nodes that changed, and about the
// nodes that are related to them: nodes that list the same address or key, or an overlapping pod
// prefix, directly or through other nodes.
//
// The zero value is ready for use. A Resolver is not safe for concurrent use. It keeps references
// to its arguments and results, which must not be changed.
type Resolver struct {
	memory *memory // nil means that the next call decides about all nodes
	// decided is the number of nodes about which the last call decided.
	decided int
}

// memory is what a Resolver keeps of its last call.
type memory struct {
	rules      Rules
	apiServers []netip.Addr
	nodes      []Node // of the state, sorted by name
	// given is the last good table as it was passed, and table the result.
	given, table Table
	refusals     []Refusal
	// unsettled holds the nodes for which given and table differ. If table is the next last good
	// table, these nodes must be decided again, although they have not changed.
	unsettled map[string]bool
	claims    *claimIndex
}

const (
	// relatedAlways is the number of nodes about which a Resolver always decides alone. If more
	// nodes are concerned, it does so up to one in relatedShare of all nodes. Beyond that it
	// decides about all nodes.
	relatedAlways = 64
	relatedShare  = 8
)

// Decided returns the number of nodes about which the last call of Resolve decided.
func (r *Resolver) Decided() int { return r.decided }

// Resolve is the function Resolve. It is cheap if lastGood is the last result or the lastGood of
// the last call, with the same memory.
func (r *Resolver) Resolve(rules Rules, state State, lastGood *Table) (Table, []Refusal) {
	if lastGood == nil {
		lastGood = &Table{}
	}
	m := r.memory
	r.memory = nil // stays nil if this call does not complete the next memory
	if m != nil && state.Synced && !state.SitesUnlisted && rules.equal(m.rules) &&
		slices.Equal(servers(state, *lastGood), m.apiServers) {
		if decided, ok := m.update(rules, state, *lastGood); ok {
			r.memory, r.decided = m, decided
			return m.table, m.refusals
		}
	}

	t, refusals := Resolve(rules, state, lastGood)
	r.memory, r.decided = newMemory(rules, state, *lastGood, t, refusals), len(state.Nodes)
	return t, refusals
}

// newMemory returns the memory of a call of Resolve, or nil if the next call must decide about all
// nodes: while state or its sites are not listed, each node depends on all nodes of lastGood.
func newMemory(rules Rules, state State, lastGood, result Table, refusals []Refusal) *memory {
	nodes, distinct := byName(state.Nodes)
	if !state.Synced || state.SitesUnlisted || !distinct || !ascending(lastGood.Peers) ||
		!ascending(lastGood.Keyless) {
		return nil
	}
	m := &memory{rules: rules, apiServers: result.APIServers, nodes: nodes, given: lastGood,
		table: result, refusals: refusals, unsettled: map[string]bool{}}
	last, decided := newLookup(lastGood), newLookup(result)
	m.claims = newClaimIndex(nodes, last)
	for _, n := range nodes {
		if !last.same(decided, n) {
			m.unsettled[n.Name] = true
		}
	}
	return m
}

// update makes m the memory of a call with these arguments, if few nodes are concerned. It returns
// their number. If ok is false, m cannot be used any more.
func (m *memory) update(rules Rules, state State, lastGood Table) (decided int, ok bool) {
	nodes, distinct := byName(state.Nodes)
	settles := sameTable(lastGood, m.table)
	if !distinct || !settles && !sameTable(lastGood, m.given) {
		return 0, false
	}

	limit := max(relatedAlways, len(nodes)/relatedShare)
	changed := changedNodes(m.nodes, nodes)
	if settles {
		maps.Copy(changed, m.unsettled)
	}
	if len(changed) > limit {
		return 0, false
	}

	last := lookup{lastGood, m.table.NodeAddrs}
	if !settles {
		last = newLookup(lastGood)
	}
	concerned, ok := m.concerned(changed, nodes, last, limit)
	if !ok {
		return 0, false
	}
	m.decide(concerned, rules, State{Revision: state.Revision, Synced: true,
		APIServers: state.APIServers}, nodes, last)
	m.settle(concerned, settles, nodes, last)
	m.nodes, m.given, m.table.Revision = nodes, lastGood, state.Revision
	return len(concerned), true
}

// concerned returns the names of the nodes about which to decide again: the changed nodes, and all
// nodes that were or are related to them. It makes m.claims the claims of nodes. ok is false if
// they are more than limit.
func (m *memory) concerned(changed map[string]bool, nodes []Node, last lookup,
	limit int) (concerned map[string]bool, ok bool) {
	concerned = maps.Clone(changed)
	var queue []string
	add := func(name string) bool {
		if !concerned[name] {
			concerned[name] = true
			queue = append(queue, name)
		}
		return len(concerned) <= limit
	}
	for name := range changed {
		queue = append(queue, name)
		if was, had := find(m.nodes, name); had {
			m.claims.related(was, add)
		}
	}
	for name := range changed {
		m.reindex(name, nodes, last)
	}

	for ; len(queue) > 0; queue = queue[1:] {
		if n, has := find(nodes, queue[0]); has {
			m.claims.related(n, add)
		}
		if len(concerned) > limit {
			return nil, false
		}
	}
	return concerned, true
}

// reindex replaces the claims of a node by those in nodes.
func (m *memory) reindex(name string, nodes []Node, last lookup) {
	was, had := find(m.nodes, name)
	is, has := find(nodes, name)
	samePrefixes := had && has && shared(was.PodPrefixes, is.PodPrefixes)
	if had {
		m.claims.remove(was)
		if !samePrefixes {
			m.claims.removePrefixes(was)
		}
	}
	if has {
		m.claims.put(is, last)
		if !samePrefixes {
			m.claims.putPrefixes(is)
		}
	}
}

// decide replaces the decisions about the concerned nodes in m by those of Resolve. It decides by
// these nodes alone, because no other node claims anything that they claim.
func (m *memory) decide(concerned map[string]bool, rules Rules, state State, nodes []Node,
	last lookup) {
	r := resolution{rules: rules, last: map[string]Node{}, lastAddrs: last.addrs,
		apiServers: m.apiServers}
	var places []Node
	var addrs []netip.Addr
	for _, name := range slices.Sorted(maps.Keys(concerned)) {
		places = append(places, Node{Name: name})
		if was, had := find(m.nodes, name); had {
			addrs = append(addrs, listedAddrs(was)...)
		}
		if n, has := find(nodes, name); has {
			state.Nodes = append(state.Nodes, n)
			if l, known := last.node(name); known {
				r.last[name] = l
			}
		}
	}

	part, refusals := r.resolve(state)
	t := &m.table
	if concerned[rules.Self] {
		t.Self = part.Self
	}
	t.Peers = splice(t.Peers, places, part.Peers, compareNames, Node.Equal)
	t.Keyless = splice(t.Keyless, places, part.Keyless, compareNames, Node.Equal)
	t.NodeAddrs = splice(t.NodeAddrs, canonicalAddrs(append(addrs, part.NodeAddrs...)),
		part.NodeAddrs, netip.Addr.Compare, func(a, b netip.Addr) bool { return a == b })

	stale := func(f Refusal) bool { return concerned[f.Node] }
	if len(refusals) > 0 || slices.ContainsFunc(m.refusals, stale) {
		all := append(slices.DeleteFunc(slices.Clone(m.refusals), stale), refusals...)
		slices.SortFunc(all, compareRefusals)
		if m.refusals = all; len(all) == 0 {
			m.refusals = nil
		}
	}
}

// settle makes m.unsettled the nodes for which lastGood and the new table differ. settles reports
// whether they were the same for all nodes before.
func (m *memory) settle(concerned map[string]bool, settles bool, nodes []Node, last lookup) {
	if settles {
		clear(m.unsettled)
	}
	decided := lookup{m.table, m.table.NodeAddrs}
	for name := range concerned {
		delete(m.unsettled, name)
		if n, has := find(nodes, name); has && !last.same(decided, n) {
			m.unsettled[name] = true
		}
	}
}

// splice returns have with add in place of the elements at places. All lists are sorted, and places
// has the place of each element of add. It returns have itself if nothing changes, and nil if
// nothing is left.
func splice[T any](have, places, add []T, compare func(a, b T) int, same func(a, b T) bool) []T {
	changes := func() bool {
		rest := add
		for _, p := range places {
			i, had := slices.BinarySearchFunc(have, p, compare)
			has := len(rest) > 0 && compare(rest[0], p) == 0
			if had != has || had && !same(have[i], rest[0]) {
				return true
			}
			if has {
				rest = rest[1:]
			}
		}
		return false
	}
	if !changes() {
		return have
	}

	out := make([]T, 0, len(have)+len(add))
	for _, p := range places {
		i, had := slices.BinarySearchFunc(have, p, compare)
		out, have = append(out, have[:i]...), have[i:]
		if had {
			have = have[1:]
		}
		if len(add) > 0 && compare(add[0], p) == 0 {
			out, add = append(out, add[0]), add[1:]
		}
	}
	if out = append(out, have...); len(out) == 0 {
		return nil
	}
	return out
}

// lookup finds nodes and addresses in a table. Its peers and keyless nodes are sorted.
type lookup struct {
	table Table
	addrs []netip.Addr // NodeAddrs of table, sorted
}

func newLookup(t Table) lookup { return lookup{t, canonicalAddrs(t.NodeAddrs)} }

// node returns the node of a name, as lastNodes does.
func (l lookup) node(name string) (Node, bool) {
	if l.table.Self != nil && l.table.Self.Name == name {
		return canonical(*l.table.Self), true
	}
	for _, list := range [][]Node{l.table.Peers, l.table.Keyless} {
		if n, has := find(list, name); has {
			return canonical(n), true
		}
	}
	return Node{}, false
}

// same reports whether a decision about n reads the same from l and from m.
func (l lookup) same(m lookup, n Node) bool {
	a, hasA := l.node(n.Name)
	b, hasB := m.node(n.Name)
	return hasA == hasB && a.Equal(b) &&
		!slices.ContainsFunc(listedAddrs(n), func(a netip.Addr) bool {
			return has(l.addrs, a) != has(m.addrs, a)
		})
}

// sameTable reports whether a and b share their memory, so that their content is the same.
func sameTable(a, b Table) bool {
	return a.Self == b.Self && shared(a.Peers, b.Peers) && shared(a.Keyless, b.Keyless) &&
		shared(a.NodeAddrs, b.NodeAddrs)
}

// listedAddrs returns all addresses that the source lists for n, in canonical form.
func listedAddrs(n Node) []netip.Addr {
	if len(n.Contested) == 0 {
		return canonicalAddrs(n.Addresses)
	}
	return canonicalAddrs(slices.Concat(n.Addresses, n.Contested))
}

// byName returns nodes sorted by name. distinct reports whether each name occurs once.
func byName(nodes []Node) (sorted []Node, distinct bool) {
	if ascending(nodes) {
		return nodes, true
	}
	sorted = slices.Clone(nodes)
	slices.SortFunc(sorted, compareNames)
	return sorted, ascending(sorted)
}

// ascending reports whether nodes are sorted by name, and each name occurs once.
func ascending(nodes []Node) bool {
	for i := 1; i < len(nodes); i++ {
		if nodes[i-1].Name >= nodes[i].Name {
			return false
		}
	}
	return true
}

// find returns the node of a name in nodes, which are sorted.
func find(nodes []Node, name string) (Node, bool) {
	i, found := slices.BinarySearchFunc(nodes, Node{Name: name}, compareNames)
	if !found {
		return Node{}, false
	}
	return nodes[i], true
}

// changedNodes returns the names of the nodes that are not equal in was and is, which are sorted.
func changedNodes(was, is []Node) map[string]bool {
	changed := map[string]bool{}
	put, gone, _ := NewDelta(was, is).Changes()
	for _, n := range slices.Concat(put, gone) {
		changed[n.Name] = true
	}
	return changed
}

// identical reports whether a and b share all their memory. It is a fast test for equal nodes.
func identical(a, b *Node) bool {
	return a.Claim == b.Claim && a.Created == b.Created && a.ControlPlane == b.ControlPlane &&
		a.Zone == b.Zone && a.Leaving == b.Leaving && shared(a.Addresses, b.Addresses) &&
		shared(a.Contested, b.Contested) && shared(a.PodPrefixes, b.PodPrefixes)
}

// equal reports whether a and b are the same rules, with their lists in the same order.
func (a Rules) equal(b Rules) bool {
	return a.Self == b.Self && slices.Equal(a.ClusterRanges, b.ClusterRanges) &&
		slices.Equal(a.ServiceRanges, b.ServiceRanges) &&
		slices.Equal(a.NodeRanges, b.NodeRanges) && slices.Equal(a.Outside, b.Outside) &&
		slices.EqualFunc(a.Sites, b.Sites, Site.Equal) && slices.Equal(a.Gateways, b.Gateways)
}
