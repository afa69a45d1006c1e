package policy

import (
	"fmt"
	"strings"
)

// portWords returns the ports of a line in words; def is the definition of its peers.
func portWords(l Line, def *definition) string {
	if def != nil && def.kind == KindNamed {
		return fmt.Sprintf("%s %s", def.proto, def.port)
	}
	i := l.Ports
	switch {
	case i.Proto == 0:
		return "all"
	case i.First == 0 && i.Last == 65535:
		return i.Proto.String()
	case i.First == i.Last:
		return fmt.Sprintf("%s %d", i.Proto, i.First)
	}
	return fmt.Sprintf("%s %d-%d", i.Proto, i.First, i.Last)
}

// maxWords bounds the selectors of one set that a text names.
const maxWords = 16

// words describes the peers of a set.
func (d *definition) words() string {
	if len(d.any) > 0 {
		var all []string
		for _, a := range d.any[:min(len(d.any), maxWords)] {
			all = append(all, a.words())
		}
		if more := len(d.any) - len(all); more > 0 {
			all = append(all, fmt.Sprintf("%d more selectors", more))
		}
		return strings.Join(all, ", or ")
	}
	block := ""
	if d.block != nil {
		block = d.block.CIDR.Masked().String()
		for i, e := range sortedPrefixes(d.block.Except) {
			if i == 0 {
				block += " except "
			} else {
				block += ", "
			}
			block += e.String()
		}
	}

	switch {
	case d.kind == KindBlock:
		return block
	case d.kind == KindNodes && len(d.pods) == 0:
		return "all nodes"
	case d.kind == KindNodes:
		return "nodes with " + d.pods.words()
	case d.block != nil:
		return "pods in " + block
	}
	pods := "all pods"
	if len(d.pods) > 0 {
		pods = "pods with " + d.pods.words()
	}
	switch {
	case d.namespaces == nil && d.namespace != "":
		return pods + " in namespace " + d.namespace
	case d.namespaces != nil && len(*d.namespaces) > 0:
		return pods + " in namespaces with " + d.namespaces.words()
	}
	return pods + " in all namespaces"
}

// words describes the labels that the selector requires.
func (s Selector) words() string {
	all := make([]string, 0, len(s))
	for _, r := range s {
		values := strings.Join(r.Values, ",")
		switch {
		case r.Op == In && len(r.Values) == 1:
			all = append(all, r.Key+"="+values)
		case r.Op == In:
			all = append(all, fmt.Sprintf("%s in (%s)", r.Key, values))
		case r.Op == NotIn:
			all = append(all, fmt.Sprintf("%s not in (%s)", r.Key, values))
		case r.Op == Exists:
			all = append(all, r.Key+" set")
		case r.Op == DoesNotExist:
			all = append(all, r.Key+" unset")
		}
	}
	return strings.Join(all, " and ")
}
