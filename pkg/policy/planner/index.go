package planner

import (
	"maps"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// labelKey is a label that a pod needs to be in a set, and the namespace that the pod must be in.
// An empty namespace means any namespace.
type labelKey struct{ namespace, key, value string }

// setIndex finds the sets that a pod may belong to, by what their definitions require: a namespace,
// a value of a label, or both.
type setIndex struct {
	labels map[labelKey]map[*members]bool
	// namespaces holds the sets that require no label, keyed by the namespace that they require.
	// The key "" is for any namespace: for sets that require none, and for sets that select
	// namespaces by label.
	namespaces map[string]map[*members]bool
	// has holds the sets that each pod is in.
	has map[policy.Name]map[*members]bool
}

func newSetIndex() setIndex {
	return setIndex{map[labelKey]map[*members]bool{}, map[string]map[*members]bool{},
		map[policy.Name]map[*members]bool{}}
}

// required returns the keys under which the index holds a definition that requires a label. A pod
// that the definition selects has at least one of these labels. required returns nil if the
// definition requires no label; it may still require a namespace.
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
	return nil
}

// alternatives returns definitions. A pod is in the set if at least one of them selects it.
func alternatives(d *compile.Definition) []*compile.Definition {
	if len(d.Any) > 0 {
		return d.Any
	}
	return []*compile.Definition{d}
}

// add adds a set that is not in the index yet.
func (x *setIndex) add(s *members) { x.enter(s, put[labelKey], put[string]) }

// remove removes a set.
func (x *setIndex) remove(s *members) {
	x.enter(s, drop[labelKey], drop[string])
	for pod := range s.pods {
		drop(x.has, pod, s)
	}
}

// enter calls labels or namespaces for each key of a set, with the map of that name. These
// functions add the set to the map or remove it.
func (x *setIndex) enter(s *members,
	labels func(map[labelKey]map[*members]bool, labelKey, *members),
	namespaces func(map[string]map[*members]bool, string, *members)) {
	if !s.def.OfPods() {
		return
	}
	for _, d := range alternatives(s.def) {
		keys := required(d)
		for _, k := range keys {
			labels(x.labels, k, s)
		}
		switch {
		case len(keys) > 0:
		case d.Namespaces != nil:
			namespaces(x.namespaces, "", s)
		default:
			namespaces(x.namespaces, d.Namespace, s)
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
	each(x.namespaces[pod.Namespace])
	each(x.namespaces[""])
	each(maps.Clone(x.has[pod.Name]))
}
