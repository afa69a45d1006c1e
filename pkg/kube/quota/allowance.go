package quota

import (
	"cmp"
	"container/heap"
)

// Allowance decides which objects of a namespace are dropped: the largest ones, until the others
// are within the limit. The decision depends only on the objects, not on the order of their
// arrival.
type Allowance struct {
	limit  int
	spaces map[string]*space
}

// space holds the objects of a namespace in two heaps, so that a change takes logarithmic time.
type space struct {
	objects map[string]*counted
	// The first object of kept would be dropped next. The first object of dropped would be kept
	// again next.
	kept, dropped ranking
	// sum is the number of elements of the objects in kept.
	sum int
}

// Size is the size of an object in elements, and its resourceVersion.
type Size struct {
	Elements int
	Version  string
}

// counted is an object of a space.
type counted struct {
	Size
	name    string
	dropped bool
	at      int // index in its heap
}

// before reports whether c is dropped before other: it is larger, or of equal size with a smaller
// name.
func (c *counted) before(other *counted) bool {
	return cmp.Or(cmp.Compare(other.Elements, c.Elements), cmp.Compare(c.name, other.name)) < 0
}

// NewAllowance returns an Allowance of limit elements for each namespace.
func NewAllowance(limit int) *Allowance {
	return &Allowance{limit: limit, spaces: map[string]*space{}}
}

// Put records the size of an object; size 0 means that the object is deleted. It returns the names
// of the objects of the namespace that are newly dropped, and of those that are not dropped any
// more.
func (a *Allowance) Put(namespace, name string, of Size) (drop, restore []string) {
	s := a.spaces[namespace]
	if s == nil {
		if of.Elements == 0 {
			return nil, nil
		}
		s = &space{objects: map[string]*counted{}, kept: ranking{first: (*counted).before},
			dropped: ranking{first: func(c, other *counted) bool { return other.before(c) }}}
		a.spaces[namespace] = s
	}

	was := s.remove(name)
	if of.Elements > 0 {
		s.add(&counted{Size: of, name: name})
	}
	drop, restore = s.balance(a.limit, name)
	switch is := a.Dropped(namespace, name); {
	case is && !was:
		drop = append(drop, name)
	case was && !is && of.Elements > 0:
		restore = append(restore, name)
	}
	if len(s.objects) == 0 {
		delete(a.spaces, namespace)
	}
	return drop, restore
}

// remove removes an object, and reports whether it was dropped.
func (s *space) remove(name string) (dropped bool) {
	c := s.objects[name]
	if c == nil {
		return false
	}
	delete(s.objects, name)
	heap.Remove(s.heapOf(c), c.at)
	if !c.dropped {
		s.sum -= c.Elements
	}
	return c.dropped
}

// add adds an object. It is dropped if an object that would be dropped after it is already dropped.
func (s *space) add(c *counted) {
	s.objects[c.name] = c
	c.dropped = len(s.dropped.all) > 0 && c.before(s.dropped.all[0])
	if !c.dropped {
		s.sum += c.Elements
	}
	heap.Push(s.heapOf(c), c)
}

func (s *space) heapOf(c *counted) *ranking {
	if c.dropped {
		return &s.dropped
	}
	return &s.kept
}

// balance drops objects until the others are within the limit, and then keeps objects again that
// fit. It returns their names without except.
func (s *space) balance(limit int, except string) (drop, restore []string) {
	move := func(from, to *ranking, by int, names *[]string) {
		c := heap.Pop(from).(*counted)
		c.dropped = !c.dropped
		s.sum += by * c.Elements
		heap.Push(to, c)
		if c.name != except {
			*names = append(*names, c.name)
		}
	}
	for s.sum > limit {
		move(&s.kept, &s.dropped, -1, &drop)
	}
	for len(s.dropped.all) > 0 && s.sum+s.dropped.all[0].Elements <= limit {
		move(&s.dropped, &s.kept, 1, &restore)
	}
	return drop, restore
}

// Dropped reports whether an object is dropped.
func (a *Allowance) Dropped(namespace, name string) bool {
	c := a.find(namespace, name)
	return c != nil && c.dropped
}

// Has reports whether an object was recorded with this version.
func (a *Allowance) Has(namespace, name, version string) bool {
	c := a.find(namespace, name)
	return c != nil && c.Version == version
}

func (a *Allowance) find(namespace, name string) *counted {
	if s := a.spaces[namespace]; s != nil {
		return s.objects[name]
	}
	return nil
}

// ranking is a heap of objects, ordered by first.
type ranking struct {
	all   []*counted
	first func(c, other *counted) bool
}

func (r *ranking) Len() int           { return len(r.all) }
func (r *ranking) Less(i, j int) bool { return r.first(r.all[i], r.all[j]) }

func (r *ranking) Swap(i, j int) {
	r.all[i], r.all[j] = r.all[j], r.all[i]
	r.all[i].at, r.all[j].at = i, j
}

func (r *ranking) Push(x any) {
	c := x.(*counted)
	c.at = len(r.all)
	r.all = append(r.all, c)
}

func (r *ranking) Pop() any {
	last := len(r.all) - 1
	c := r.all[last]
	r.all[last] = nil
	r.all = r.all[:last]
	return c
}
