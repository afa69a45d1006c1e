package cluster

import "slices"

// Memo maps nodes to values, and remembers the values of the last nodes. The zero value is ready
// for use. It is not safe for concurrent use.
type Memo[T any] struct {
	nodes  []Node
	values []T
}

// Forget makes the next Map compute all values.
func (m *Memo[T]) Forget() { *m = Memo[T]{} }

// Map returns value(n) for each node, in the order of nodes, which must be sorted by name. It calls
// value only for nodes that changed since the last Map, so value must depend on nothing else. If no
// value changed, it returns the last slice. Neither nodes nor the result may be changed.
func (m *Memo[T]) Map(nodes []Node, same func(a, b T) bool, value func(n Node) T) []T {
	if m.values != nil && shared(nodes, m.nodes) {
		return m.values
	}

	// out is nil while it would be the same as m.values.
	var out []T
	put := func(i int, v T) {
		if out == nil {
			out = make([]T, len(nodes))
			copy(out, m.values[:min(i, len(m.values))])
		}
		out[i] = v
	}
	was := 0 // the place of the current node among the last nodes
	for i := range nodes {
		n := &nodes[i]
		for was < len(m.nodes) && m.nodes[was].Name < n.Name {
			was++
		}
		known := was < len(m.nodes) && m.nodes[was].Name == n.Name
		switch {
		case known && (identical(&m.nodes[was], n) || n.Equal(m.nodes[was])):
			if out != nil || was != i {
				put(i, m.values[was])
			}
		default:
			v := value(*n)
			if out != nil || !known || was != i || !same(v, m.values[i]) {
				put(i, v)
			}
		}
	}
	switch {
	case out != nil:
		m.values = out
	case len(nodes) < len(m.values) || m.values == nil:
		m.values = slices.Clip(m.values[:len(nodes)])
	}
	m.nodes = nodes
	return m.values
}
