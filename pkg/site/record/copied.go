package record

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of the labels and annotations of one export, both together.
const (
	MaxCopied      = 64
	MaxCopiedBytes = 4 << 10 // of names and values
)

// reserved are domains in which names have a meaning for Kubernetes, for its tools or for Kubeveil.
// Another cluster does not decide about those.
var reserved = []string{"kubernetes.io", "k8s.io", "x-k8s.io", "kubeveil.io"}

// Copied returns the labels and annotations that the import of an export gets. left has a sentence
// about each other one: its name is malformed or in a reserved domain, or it is beyond the bounds.
// Labels come first, in the order of their names.
func Copied(labels, annotations map[string]string) (l, a map[string]string, left []string) {
	n, size := 0, 0
	take := func(kind string, all map[string]string,
		problem func(name, value string) string) map[string]string {
		kept := map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			why := problem(name, all[name])
			more := len(name) + len(all[name])
			if why == "" && (n == MaxCopied || size+more > MaxCopiedBytes) {
				why = fmt.Sprintf("an export has at most %d labels and annotations of %d bytes together",
					MaxCopied, MaxCopiedBytes)
			}
			if why != "" {
				left = append(left, fmt.Sprintf("the %s %.80q is not copied: %s", kind, name, why))
				continue
			}
			n, size = n+1, size+more
			kept[name] = all[name]
		}
		return kept
	}

	l = take("label", labels, func(name, value string) string {
		if why := judgeName(name); why != "" {
			return why
		}
		return strings.Join(validation.IsValidLabelValue(value), "; ")
	})
	a = take("annotation", annotations, func(name, _ string) string { return judgeName(name) })
	return l, a, left
}

// judgeName returns a sentence about why a label or annotation of this name is not copied, or "".
func judgeName(name string) string {
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return strings.Join(problems, "; ")
	}
	domain, _, has := strings.Cut(name, "/")
	for _, r := range reserved {
		if has && (domain == r || strings.HasSuffix(domain, "."+r)) {
			return "names in the domain " + r + " are reserved"
		}
	}
	return ""
}
