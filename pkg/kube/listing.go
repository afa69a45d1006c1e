package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
)

// listing holds the nodes of the last State as the API server lists them. It changes with the
// stores, object by object. Only Run uses it.
type listing struct {
	// fromNodes and fromVeilNodes are its readers of the stores.
	fromNodes, fromVeilNodes *touched
	nodes                    []cluster.Node // sorted by name; never changed in place
	synced                   bool           // whether the nodes have their claims
	// problems are sentences about malformed parts of Nodes and VeilNodes, by kind and name. noted
	// are all problems that were passed on last.
	problems, noted map[string]string
	// sites are the nodes of sites.
	sites sitenode.List
}

// changeOfNodes describes how the nodes of a listing changed.
type changeOfNodes struct {
	// all reports whether all nodes were read again.
	all bool
	// any reports whether a node changed. It is true if all is.
	any bool
	// lost is the number of nodes that are missing now; 0 if all is true.
	lost int
}

// update reads the changes of the stores into l. synced is State.Synced.
func (l *listing) update(c *Client, nodes, veilNodes touched, synced bool) changeOfNodes {
	if nodes.all || veilNodes.all || synced != l.synced || l.problems == nil {
		l.synced = synced
		l.readAll(c)
		return changeOfNodes{all: true, any: true}
	}

	maps.Copy(nodes.names, veilNodes.names)
	var change changeOfNodes
	rest, next := l.nodes, []cluster.Node(nil)
	for _, name := range slices.Sorted(maps.Keys(nodes.names)) {
		i, had := slices.BinarySearchFunc(rest, name,
			func(n cluster.Node, name string) int { return strings.Compare(n.Name, name) })
		is, has := l.read(c, name)
		if had == has && (!has || rest[i].Equal(is)) {
			continue
		}
		if next == nil {
			next = make([]cluster.Node, 0, len(l.nodes)+len(nodes.names))
		}
		next, rest = append(next, rest[:i]...), rest[i:]
		if had {
			rest = rest[1:]
		}
		if has {
			next = append(next, is)
		} else {
			change.lost++
		}
		change.any = true
	}
	if change.any {
		l.nodes = append(next, rest...)
	}
	return change
}

// readAll reads all nodes from the stores.
func (l *listing) readAll(c *Client) {
	all, _ := c.nodes.all()
	l.nodes, l.problems = make([]cluster.Node, 0, len(all)), map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n, has := l.read(c, name); has {
			l.nodes = append(l.nodes, n)
		}
	}
}

// read reads a node from the stores, and stores its problems. A node without a Node object has no
// place in a State.
func (l *listing) read(c *Client, name string) (n cluster.Node, has bool) {
	delete(l.problems, "Node "+name)
	delete(l.problems, "VeilNode "+name)
	e, has := c.nodes.get(name)
	if !has {
		return n, false
	}
	if e.problem != "" {
		l.problems["Node "+name] = e.problem
	}
	n = e.node
	if v, has := c.veilNodes.get(name); has && l.synced {
		switch {
		case v.problem != "":
			l.problems["VeilNode "+name] = v.problem
		case v.ownerUID != "" && v.ownerUID != e.uid:
			l.problems["VeilNode "+name] = "its owner is an earlier Node of this name; the " +
				"node's veild replaces it when it runs"
		default:
			n.Claim = v.claim
		}
	}
	return n, true
}

// note passes the problems in l and in more to the server, if they changed since the last call.
func (l *listing) note(c *Client, more map[string]string) {
	if len(l.problems)+len(more) == 0 && len(l.noted) == 0 {
		return
	}
	found := maps.Clone(l.problems)
	maps.Copy(found, more)
	if !maps.Equal(found, l.noted) {
		l.noted = found
		c.server.NoteAll(stateKinds, found)
	}
}
