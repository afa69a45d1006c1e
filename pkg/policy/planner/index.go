package planner

import (
	"maps"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// labelKey is a label that a pod needs to be in a set, and the namespace that the pod must be in.
// An empty namespace means any namespace, and an empty key that no label is needed.
type labelKey struct{ namespace, key, value string }

// setIndex finds the sets that a pod may belong to, by what their definitions require: a namespace,
// a value of a label, or both.
type setIndex struct {
	labels map[labelKey]map[*members]bool
	// has holds the sets that each pod is in.
	has map[policy.Name]map[*members]bool
}

func newSetIndex() setIndex {
	return setIndex{map[labelKey]map[*members]bool{}, map[policy.Name]map[*members]bool{}}
}

// required returns the keys under which the index holds a definition. A pod that the definition
// selects has at least one of these labels, or needs none. A set that selects namespaces by label
// requires no namespace.
func required(d *compile.Definition) (keys []labelKey) {
	namespace := d.Namespace
	if d.Namespaces != nil {
		namespace = ""
	}
	for _, r := range d.Pods {
		if r.Op != policy.In {
			continue
		}
		for _, v := range r.Values {
			keys = append(keys, labelKey{namespace, r.Key, v})
		}
		return keys
	}
	return []labelKey{{namespace: namespace}}
}

// alternatives returns definitions. A pod is in the set if at least one of them selects it.
func alternatives(d *compile.Definition) []*compile.Definition {
	if len(d.Any) > 0 {
		return d.Any
	}
	return []*compile.Definition{d}
}

// add adds a set that is not in the index yet.
func (x *setIndex) add(s *members) { x.enter(s, put[labelKey]) }

// remove removes a set.
func (x *setIndex) remove(s *members) {
	x.enter(s, drop[labelKey])
	for pod := range s.pods {
		drop(x.has, pod, s)
	}
}

// enter calls change, which is put or drop, for each key of a set.
func (x *setIndex) enter(s *members, change func(map[labelKey]map[*members]bool, labelKey,
	*members)) {
	if !s.def.OfPods() {
		return
	}
	for _, d := range alternatives(s.def) {
		for _, k := range required(d) {
			change(x.labels, k, s)
		}
	}
}

func put[K comparable](in map[K]map[*members]bool, k K, s *members) {
	if in[k] == nil {
		in[k] = map[*members]bool{}
	}
	in[k][s] = true
}

func drop[K comparable](in map[K]map[*members]bool, k K, s *members) {
	if delete(in[k], s); len(in[k]) == 0 {
		delete(in, k)
	}
}

// of calls f with each set that contains the pod or may select it, with some sets more than once.
func (x *setIndex) of(pod *policy.Pod, f func(*members)) {
	each := func(sets map[*members]bool) {
		for s := range sets {
			f(s)
		}
	}
	for k, v := range pod.Labels {
		each(x.labels[labelKey{pod.Namespace, k, v}])
		each(x.labels[labelKey{"", k, v}])
	}
	each(x.labels[labelKey{namespace: pod.Namespace}])
	each(x.labels[labelKey{}])
	each(maps.Clone(x.has[pod.Name]))
}
