package policy

import "maps"

// labelKey is a label that pods of a namespace need to be in a set. An empty namespace matches any.
type labelKey struct{ namespace, key, value string }

// setIndex finds the sets that a pod may belong to, by what their definitions require: a namespace,
// a value of a label, or both.
type setIndex struct {
	labels map[labelKey]map[*members]bool
	// namespaces are the sets that require no value of a label, by the namespace that they require.
	// Sets below "" require no namespace either.
	namespaces map[string]map[*members]bool
	// has are the sets that each pod is in.
	has map[Name]map[*members]bool
}

func newSetIndex() setIndex {
	return setIndex{map[labelKey]map[*members]bool{}, map[string]map[*members]bool{},
		map[Name]map[*members]bool{}}
}

// required returns labels, one of which a pod must have to be selected by the definition. It
// returns nil if the definition requires no label; it may still require a namespace.
func (d *definition) required() (keys []labelKey) {
	namespace := d.namespace
	if d.namespaces != nil {
		namespace = ""
	}
	for _, r := range d.pods {
		if r.Op != In {
			continue
		}
		for _, v := range r.Values {
			keys = append(keys, labelKey{namespace, r.Key, v})
		}
		return keys
	}
	return nil
}

// alternatives returns the definitions, one of which must select a pod.
func (d *definition) alternatives() []*definition {
	if len(d.any) > 0 {
		return d.any
	}
	return []*definition{d}
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

// enter calls labels or namespaces, which add or remove, for each place of a set. A namespace ""
// has the sets that require neither.
func (x *setIndex) enter(s *members,
	labels func(map[labelKey]map[*members]bool, labelKey, *members),
	namespaces func(map[string]map[*members]bool, string, *members)) {
	if !s.def.ofPods() {
		return
	}
	for _, d := range s.def.alternatives() {
		keys := d.required()
		for _, k := range keys {
			labels(x.labels, k, s)
		}
		switch {
		case len(keys) > 0:
		case d.namespaces != nil:
			namespaces(x.namespaces, "", s)
		default:
			namespaces(x.namespaces, d.namespace, s)
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

// of calls f with each set that contains the pod or may have to, for some sets more than once.
func (x *setIndex) of(pod *Pod, f func(*members)) {
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
