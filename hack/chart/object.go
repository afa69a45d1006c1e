package chart

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is a rendered object.
type object struct {
	// id is its kind, namespace and name.
	id string
	// file is the name of its template.
	file string
	// lines are its text, sorted by keys and without comments.
	lines []string
}

// first are the kinds that restrain or define what other objects are. Helm installs kinds that it
// does not know after all others, so they are hooks.
var first = map[string]bool{"CustomResourceDefinition": true, "ValidatingAdmissionPolicy": true,
	"ValidatingAdmissionPolicyBinding": true}

// hooks has the weights of hooks by the id of their object. Helm runs them by weight.
type hooks map[string]int

// parse splits what kustomize renders into objects, and gives hooks their annotations.
func (h hooks) parse(text string) (all []object, err error) {
	for part := range strings.SplitSeq(strings.TrimPrefix(text, "---\n"), "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		var whole map[string]any
		if err := errors.Join(yaml.Unmarshal([]byte(part), &o),
			yaml.Unmarshal([]byte(part), &whole)); err != nil {
			return nil, err
		}
		if o.Kind == "" || o.Metadata.Name == "" {
			return nil, fmt.Errorf("an object without kind or name: %.100q", part)
		}

		id := o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
		if first[o.Kind] {
			h.annotate(id, whole["metadata"].(map[string]any))
		}
		sorted, err := yaml.Marshal(whole)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		all = append(all, object{id: id,
			file:  strings.ToLower(o.Kind + "-" + o.Metadata.Name + ".yaml"),
			lines: strings.Split(strings.TrimSuffix(string(sorted), "\n"), "\n")})
	}
	return all, nil
}

// annotate makes an object a hook. Its weight is its place among the hooks.
func (h hooks) annotate(id string, metadata map[string]any) {
	weight, seen := h[id]
	if !seen {
		weight = len(h)
		h[id] = weight
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	annotations["helm.sh/hook"] = "pre-install,pre-upgrade"
	annotations["helm.sh/hook-weight"] = strconv.Itoa(weight)
	// Any value that Helm does not know. Without one, Helm deletes a hook and makes it again.
	annotations["helm.sh/hook-delete-policy"] = "never"
	metadata["annotations"] = annotations
}
