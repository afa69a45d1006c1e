package sitenode

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// aged is the name of an object with its age.
type aged struct {
	created time.Time
	name    string
}

func compareAged(a, b aged) int {
	return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name))
}

// oldest holds the oldest of many objects, up to MaxNodes, sorted.
type oldest struct{ all []aged }

// add adds an object that is not held, and reports whether it is held now. gone is the name of the
// object that is not held any more, or "".
func (o *oldest) add(a aged) (held bool, gone string) {
	i, _ := slices.BinarySearchFunc(o.all, a, compareAged)
	if i >= MaxNodes {
		return false, ""
	}
	o.all = slices.Insert(o.all, i, a)
	if len(o.all) > MaxNodes {
		gone = o.all[MaxNodes].name
		o.all = o.all[:MaxNodes]
	}
	return true, gone
}

// remove removes the object of a name, and reports whether it was held.
func (o *oldest) remove(name string) bool {
	i := slices.IndexFunc(o.all, func(a aged) bool { return a.name == name })
	if i < 0 {
		return false
	}
	o.all = slices.Delete(o.all, i, i+1)
	return true
}
