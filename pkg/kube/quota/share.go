package quota

import (
	"container/heap"
	"maps"
	"slices"
)

// Share bounds what is kept of the objects of each namespace. It keeps the first by name until they
// have limit elements, and the count of the others. So a million objects cost what is kept. After a
// list this depends on the objects alone, and all nodes keep the same. One goroutine at a time may
// use it.
type Share struct {
	limit int
	// least is the size of the smallest object.
	least  int
	spaces map[string]*portion
}

// portion is what a namespace has of a Share.
type portion struct {
	objects map[string]*counted
	// last has the object first whose name is the last.
	last ranking
	sum  int
	// from is the first name that is left out; empty means that all are kept. An object from there
	// on is left out until the next list, although it may fit.
	from string
	// left counts the objects that are left out. It is exact after a list. Later changes of such
	// objects can make it wrong, because their names are not known.
	left int
}

// NewShare returns a Share of limit elements for each namespace. least is the size of the smallest
// object.
func NewShare(limit, least int) *Share {
	return &Share{limit: limit, least: least, spaces: map[string]*portion{}}
}

// Put counts an object and reports whether it is kept. It returns the names of others that are not
// kept any more. An object that is left out adds to the count of these only if it is new.
func (s *Share) Put(namespace, name string, elements int, isNew bool) (kept bool, gone []string) {
	p := s.spaces[namespace]
	if p == nil {
		p = &portion{objects: map[string]*counted{},
			last: ranking{first: func(c, other *counted) bool { return c.name > other.name }}}
		s.spaces[namespace] = p
	}
	if p.from != "" && name >= p.from {
		if isNew {
			p.left++
		}
		return false, nil
	}

	c := p.objects[name]
	if c == nil {
		c = &counted{name: name}
		p.objects[name] = c
		heap.Push(&p.last, c)
	}
	p.sum += elements - c.Elements
	c.Elements = elements
	for p.sum > s.limit {
		last := heap.Pop(&p.last).(*counted)
		delete(p.objects, last.name)
		p.sum -= last.Elements
		p.from = last.name
		p.left++
		if last != c {
			gone = append(gone, last.name)
		}
	}
	return p.objects[name] == c, gone
}

// Remove forgets an object that is kept, and reports whether it was.
func (s *Share) Remove(namespace, name string) bool {
	p := s.spaces[namespace]
	if p == nil || p.objects[name] == nil {
		return false
	}
	c := p.objects[name]
	heap.Remove(&p.last, c.at)
	delete(p.objects, name)
	p.sum -= c.Elements
	if len(p.objects) == 0 && p.from == "" {
		delete(s.spaces, namespace)
	}
	return true
}

// Gone takes an object that is left out from the count.
func (s *Share) Gone(namespace string) {
	if p := s.spaces[namespace]; p != nil && p.left > 0 {
		p.left--
	}
}

// Standing is what a namespace needs, and what is left out of it.
type Standing struct {
	// Need is how many elements its objects have at least, Left those that are left out.
	Need, Left int
	// From is the first name that is left out; empty means that all are kept.
	From string
}

// Standing returns the standing of a namespace.
func (s *Share) Standing(namespace string) Standing {
	p := s.spaces[namespace]
	if p == nil {
		return Standing{}
	}
	return Standing{Need: p.sum + p.left*s.least, Left: p.left, From: p.from}
}

// MayFit reports whether a namespace from which objects are left out may be within its limit again.
func (s *Share) MayFit(namespace string) bool {
	now := s.Standing(namespace)
	return now.From != "" && now.Need <= s.limit
}

// Namespaces returns the namespaces that have objects.
func (s *Share) Namespaces() []string { return slices.Collect(maps.Keys(s.spaces)) }

// Retain forgets the objects that are kept and for which has returns false.
func (s *Share) Retain(has func(namespace, name string) bool) {
	for namespace, p := range s.spaces {
		for name := range p.objects {
			if !has(namespace, name) {
				s.Remove(namespace, name)
			}
		}
	}
}
