package kube

import (
	"cmp"
	"maps"
	"slices"
)

// Bounds on the objects of one namespace, in elements of package wire. Beyond a bound, the largest
// objects of the namespace are dropped.
const (
	// maxPolicies bounds the rules and podSelectors of NetworkPolicies.
	maxPolicies = 1 << 19
	// maxPods bounds the labels and named ports of Pods beyond freePod of each.
	maxPods = 1 << 16
	freePod = 32
)

// allowance decides which objects of a namespace are dropped: the largest, until the others are
// within the limit. The decision depends on the objects alone, not on the order of their arrival.
type allowance struct {
	limit  int
	spaces map[string]*space
}

// space holds the sizes of the objects of one namespace.
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

// put records the size of an object; size 0 means that the object is gone. It returns the names of
// the objects of the namespace that are now dropped, and of those that are no longer dropped.
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

// largest returns the largest objects that together have at least so many elements. It returns nil
// if none are needed.
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

// dropped reports whether an object is dropped.
func (a *allowance) dropped(namespace, name string) bool {
	s := a.spaces[namespace]
	return s != nil && s.dropped[name]
}
