package quota

import (
	"container/heap"
	"maps"
	"slices"
)

// Share limits the objects of each namespace that are kept. It keeps the first objects by name, up
// to limit elements, and only counts the others. So a million objects take no more memory than the
// kept ones. After a list, the decision depends only on the objects, so all nodes keep the same
// ones. A Share is not safe for concurrent use.
type Share struct {
	limit int
	// least is the size of the smallest object.
	least  int
	spaces map[string]*portion
}

// portion holds the kept objects of a namespace.
type portion struct {
	objects map[string]*counted
	// last is a heap whose first element is the object with the greatest name.
	last ranking
	sum  int
	// from is the smallest left out name; empty means that all objects are kept. Until the next
	// list, an object whose name is not smaller is left out, even if it would fit.
	from string
	// left counts the left out objects. It is exact after a list. Later changes of such objects can
	// make it wrong, because their names are not stored.
	left int
}

// NewShare returns a Share of limit elements for each namespace. least is the size of the smallest
// object.
func NewShare(limit, least int) *Share {
	return &Share{limit: limit, least: least, spaces: map[string]*portion{}}
}

// Put counts an object and reports whether it is kept. It returns the names of other objects that
// are not kept any more. A left out object is counted as such only if isNew is true.
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

// Remove removes a kept object. It returns false if the object was not kept.
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

// Gone records that a left out object was deleted.
func (s *Share) Gone(namespace string) {
	if p := s.spaces[namespace]; p != nil && p.left > 0 {
		p.left--
	}
}

// Standing describes the objects of a namespace.
type Standing struct {
	// Need is the least number of elements of all its objects. Left is the number of left out
	// objects.
	Need, Left int
	// From is the smallest left out name; empty means that all objects are kept.
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

// MayFit reports whether objects of a namespace are left out although all of them may be within the
// limit.
func (s *Share) MayFit(namespace string) bool {
	now := s.Standing(namespace)
	return now.From != "" && now.Need <= s.limit
}

// Namespaces returns the namespaces that have objects.
func (s *Share) Namespaces() []string { return slices.Collect(maps.Keys(s.spaces)) }

// Retain removes the kept objects for which has returns false.
func (s *Share) Retain(has func(namespace, name string) bool) {
	for namespace, p := range s.spaces {
		for name := range p.objects {
			if !has(namespace, name) {
				s.Remove(namespace, name)
			}
		}
	}
}
