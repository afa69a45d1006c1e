package compile

import (
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// PortWords returns the ports of a line in words; def is the definition of its peers.
func PortWords(l policy.Line, def *Definition) string {
	if def != nil && def.Kind == policy.KindNamed {
		return fmt.Sprintf("%s %s", def.Proto, def.Port)
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

// maxWords bounds the selectors of one set that a text names. maxText bounds the bytes of a list in
// words, except for its last word.
const maxWords, maxText = 16, 512

// joined joins n words, which word returns. Beyond maxText it only counts them.
func joined(n int, separator string, word func(int) string) string {
	var text strings.Builder
	for i := range n {
		if i > 0 {
			text.WriteString(separator)
		}
		if text.Len() > maxText {
			fmt.Fprintf(&text, "%d more", n-i)
			break
		}
		text.WriteString(word(i))
	}
	return text.String()
}

// Words describes the peers of a set.
func (d *Definition) Words() string {
	if len(d.Any) > 0 {
		var all []string
		for _, a := range d.Any[:min(len(d.Any), maxWords)] {
			all = append(all, a.Words())
		}
		if more := len(d.Any) - len(all); more > 0 {
			all = append(all, fmt.Sprintf("%d more selectors", more))
		}
		return strings.Join(all, ", or ")
	}
	block := ""
	if d.Block != nil {
		block = d.Block.CIDR.Masked().String()
		if except := SortedPrefixes(d.Block.Except); len(except) > 0 {
			block += " except " + joined(len(except), ", ",
				func(i int) string { return except[i].String() })
		}
	}

	switch {
	case d.Kind == policy.KindBlock:
		return block
	case d.Kind == policy.KindNodes && len(d.Pods) == 0:
		return "all nodes"
	case d.Kind == policy.KindNodes:
		return "nodes with " + selectorWords(d.Pods)
	case d.Block != nil:
		return "pods in " + block
	}
	pods := "all pods"
	if len(d.Pods) > 0 {
		pods = "pods with " + selectorWords(d.Pods)
	}
	switch {
	case d.Namespaces == nil && d.Namespace != "":
		return pods + " in namespace " + d.Namespace
	case d.Namespaces != nil && len(*d.Namespaces) > 0:
		return pods + " in namespaces with " + selectorWords(*d.Namespaces)
	}
	return pods + " in all namespaces"
}

// selectorWords describes the labels that a selector requires.
func selectorWords(s policy.Selector) string {
	return joined(len(s), " and ", func(i int) string { return requirementWords(s[i]) })
}

func requirementWords(r policy.Requirement) string {
	values := joined(len(r.Values), ",", func(i int) string { return r.Values[i] })
	switch {
	case r.Op == policy.In && len(r.Values) == 1:
		return r.Key + "=" + values
	case r.Op == policy.In:
		return fmt.Sprintf("%s in (%s)", r.Key, values)
	case r.Op == policy.NotIn:
		return fmt.Sprintf("%s not in (%s)", r.Key, values)
	case r.Op == policy.Exists:
		return r.Key + " set"
	case r.Op == policy.DoesNotExist:
		return r.Key + " unset"
	}
	return ""
}
