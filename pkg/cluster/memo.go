package cluster

// Delta is the difference of two lists of nodes, sorted by name.
type Delta struct {
	was, is []Node
	// aligned reports whether both lists have the same names in the same places. changed then holds
	// the places of nodes that differ.
	aligned bool
	changed []int
}

// NewDelta returns the difference of was and is. Neither may be changed later.
func NewDelta(was, is []Node) Delta {
	d := Delta{was: was, is: is, aligned: len(was) == len(is)}
	if shared(was, is) {
		return d
	}
	for i := 0; d.aligned && i < len(is); i++ {
		switch a, b := &was[i], &is[i]; {
		case a.Name != b.Name:
			d.aligned = false
		case !identical(a, b) && !a.Equal(*b):
			d.changed = append(d.changed, i)
		}
	}
	return d
}

// Is reports whether d is a difference of nodes from others.
func (d Delta) Is(nodes []Node) bool { return shared(d.is, nodes) }

// Between reports whether d is the difference of was and is.
func (d Delta) Between(was, is []Node) bool { return shared(d.was, was) && shared(d.is, is) }

// Changes returns the nodes of the second list that have no equal node in the first, and the nodes
// of the first list whose names the second does not have. ok is false if a list is not sorted by
// name, or has a name twice.
func (d Delta) Changes() (put, gone []Node, ok bool) {
	if d.aligned {
		for _, i := range d.changed {
			put = append(put, d.is[i])
		}
		return put, nil, true
	}
	if !ascending(d.was) || !ascending(d.is) {
		return nil, nil, false
	}

	was, is := d.was, d.is
	for len(was) > 0 && len(is) > 0 {
		a, b := &was[0], &is[0]
		switch {
		case a.Name < b.Name:
			gone, was = append(gone, *a), was[1:]
		case a.Name > b.Name:
			put, is = append(put, *b), is[1:]
		default:
			if !identical(a, b) && !a.Equal(*b) {
				put = append(put, *b)
			}
			was, is = was[1:], is[1:]
		}
	}
	return append(put, is...), append(gone, was...), true
}

// Memo maps nodes to values, and remembers the values of the last nodes. The zero value is ready
// for use. It is not safe for concurrent use.
type Memo[T any] struct {
	nodes  []Node
	values []T
}

// Forget makes the next Map compute all values.
func (m *Memo[T]) Forget() { *m = Memo[T]{} }

// Map returns value(n) for each node of d.is, in their order. It calls value only for nodes that
// changed since the last Map, so value must depend on nothing else. If no value changed, it returns
// the last slice. The result must not be changed. Map is fast if d.was are the nodes of the last
// Map.
func (m *Memo[T]) Map(d Delta, same func(a, b T) bool, value func(n Node) T) []T {
	if m.values == nil || !shared(d.was, m.nodes) {
		d = NewDelta(m.nodes, d.is)
	}
	switch {
	case m.values == nil || !d.aligned:
		m.values = m.merge(d.is, value)
	default:
		cloned := false
		for _, i := range d.changed {
			v := value(d.is[i])
			if same(v, m.values[i]) {
				continue
			}
			if !cloned {
				m.values, cloned = append(make([]T, 0, len(m.values)), m.values...), true
			}
			m.values[i] = v
		}
	}
	m.nodes = d.is
	return m.values
}

// merge returns the values of nodes, of which some may be new.
func (m *Memo[T]) merge(nodes []Node, value func(n Node) T) []T {
	out := make([]T, len(nodes))
	was := 0 // the place of the current node among the last nodes
	for i := range nodes {
		n := &nodes[i]
		for was < len(m.nodes) && m.nodes[was].Name < n.Name {
			was++
		}
		if was < len(m.nodes) && (identical(&m.nodes[was], n) && m.nodes[was].Name == n.Name ||
			m.nodes[was].Equal(*n)) {
			out[i] = m.values[was]
		} else {
			out[i] = value(*n)
		}
	}
	return out
}
