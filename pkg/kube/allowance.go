package kube

import (
	"cmp"
	"maps"
	"slices"
)

// Bounds of what is kept of the objects of one namespace, in elements of package wire. Beyond one
// the largest objects of the namespace are dropped.
const (
	// maxPolicies bounds the rules and podSelectors of NetworkPolicies.
	maxPolicies = 1 << 19
	// maxPods bounds the labels and named ports of Pods beyond freePod of each.
	maxPods = 1 << 16
	freePod = 32
)

// allowance says which objects of a namespace are dropped: the largest, until the others are within
// the limit. It depends on the objects alone, not on the order in which they came.
type allowance struct {
	limit  int
	spaces map[string]*space
}

// space is what a namespace has.
type space struct {
	sum     int
	objects map[string]sized
	dropped map[string]bool
}

// sized is the size of an object in elements, and its resourceVersion.
type sized struct {
	elements int
	version  string
}

func newAllowance(limit int) *allowance {
	return &allowance{limit: limit, spaces: map[string]*space{}}
}

// put notes the size of an object, 0 if there is none, and returns the names of the objects of its
// namespace that are dropped from now on, and of those that are not any more.
func (a *allowance) put(namespace, name string, of sized) (drop, restore []string) {
	s := a.spaces[namespace]
	if s == nil {
		if of.elements == 0 {
			return nil, nil
		}
		s = &space{objects: map[string]sized{}}
		a.spaces[namespace] = s
	}
	s.sum += of.elements - s.objects[name].elements
	s.objects[name] = of
	if of.elements == 0 {
		delete(s.objects, name)
	}
	if len(s.objects) == 0 {
		delete(a.spaces, namespace)
	}

	was := s.dropped
	s.dropped = s.largest(s.sum - a.limit)
	for n := range s.dropped {
		if !was[n] {
			drop = append(drop, n)
		}
	}
	for n := range was {
		if !s.dropped[n] && s.objects[n].elements > 0 {
			restore = append(restore, n)
		}
	}
	return drop, restore
}

// largest returns the largest objects that have together so many elements; nil for none.
func (s *space) largest(elements int) map[string]bool {
	if elements <= 0 {
		return nil
	}
	out := map[string]bool{}
	for _, n := range slices.SortedFunc(maps.Keys(s.objects), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.objects[b].elements, s.objects[a].elements),
			cmp.Compare(a, b))
	}) {
		if elements <= 0 {
			break
		}
		out[n] = true
		elements -= s.objects[n].elements
	}
	return out
}

// dropped reports whether an object is.
func (a *allowance) dropped(namespace, name string) bool {
	s := a.spaces[namespace]
	return s != nil && s.dropped[name]
}
