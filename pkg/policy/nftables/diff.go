package nftables

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// difference lists what has to change in the kernel, by name, sorted.
type difference struct {
	// anew reports whether the whole table must be written again, because it is missing or has a
	// chain at another hook.
	anew                 bool
	counters             []string
	addChains, delChains []string
	// refill are chains that stay and get other rules. edits is the result of findEdits, by chain.
	refill           []string
	edits            map[string]edit
	addSets, delSets []string
	// add and remove are elements of sets that stay.
	add, remove map[string][]string
}

func (d *difference) empty() bool { return d.count() == 0 }

func (d *difference) count() int {
	n := len(d.counters) + len(d.addChains) + len(d.delChains) + len(d.refill) + len(d.addSets) +
		len(d.delSets)
	for _, keys := range d.add {
		n += len(keys)
	}
	for _, keys := range d.remove {
		n += len(keys)
	}
	return n
}

func diff(have *state, want *content, cached *chains.Fragments) *difference {
	d := &difference{add: map[string][]string{}, remove: map[string][]string{}}
	for name, c := range want.chains {
		if have == nil {
			break
		}
		if got, has := have.chains[name]; has && got.Hook != c.HookText() {
			have = nil
		}
	}
	if have == nil {
		d.anew, have = true, &state{}
	}
	for _, name := range policy.DropReasons {
		if !have.counters[name] {
			d.counters = append(d.counters, name)
		}
	}

	for name, c := range want.chains {
		switch got, has := have.chains[name]; {
		case !has:
			d.addChains = append(d.addChains, name)
		case got != c.Summary(cached):
			d.refill = append(d.refill, name)
		}
	}
	for name := range have.chains {
		if want.chains[name] == nil {
			d.delChains = append(d.delChains, name)
		}
	}

	known := parts{}
	for name, s := range want.sets {
		got, has := have.sets[name]
		if !has {
			d.addSets = append(d.addSets, name)
			continue
		}
		if s.Timeout > 0 {
			continue
		}
		add, remove := known.missing(s.Elements, got), known.missing(got, s.Elements)
		if s.Interval && len(add)+len(remove) > 0 {
			// The kernel refuses some changes of single ends of intervals, so all intervals are
			// written again.
			add, remove = known.missing(s.Elements, nil), known.missing(got, nil)
		}
		if len(add) > 0 {
			d.add[name] = add
		}
		if len(remove) > 0 {
			d.remove[name] = remove
		}
	}
	for name := range have.sets {
		if want.sets[name] == nil {
			d.delSets = append(d.delSets, name)
		}
	}
	for _, names := range [][]string{d.addChains, d.delChains, d.refill, d.delSets} {
		slices.Sort(names)
	}
	slices.SortFunc(d.addSets, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	return d
}

// rank orders sets. For each rule, the kernel finds a set by a search of the table's list. So the
// sets to which most rules refer come first.
func rank(set string) int {
	switch {
	case strings.HasPrefix(set, sets.PortsPrefix):
		return 0
	case !sets.IsMembers(set):
		return 1
	}
	return 2
}

// missing returns the keys that are in a and not in b, sorted.
func missing(a, b sets.Union) []string { return parts{}.missing(a, b) }

// parts caches the difference of two parts of unions, by their addresses in memory: many unions may
// have the same two parts.
type parts map[[2]uintptr][]string

// missing returns the keys that are in a and not in b, sorted.
func (p parts) missing(a, b sets.Union) (out []string) {
	for i, part := range a {
		// A union that changed still has most of its parts, at the same indices.
		var before sets.Elements
		if len(a) == len(b) {
			before = b[i]
		}
		out = append(out, p.less(part, before)...)
	}
	// Keys are sorted by address, because the kernel refuses starts of intervals without their
	// ends.
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(a[1:], b[1:]), cmp.Compare(a[0], b[0]))
	})
	// Many parts may lack the same key, so each key is looked up once in all parts of b.
	return slices.DeleteFunc(slices.Compact(out), b.Has)
}

// less returns the keys of part a that are not in part b.
func (p parts) less(a, b sets.Elements) (out []string) {
	both := [2]uintptr{reflect.ValueOf(a).Pointer(), reflect.ValueOf(b).Pointer()}
	if both[0] == both[1] {
		return nil
	}
	if out, known := p[both]; known {
		return out
	}
	for k := range a {
		if !b[k] {
			out = append(out, k)
		}
	}
	p[both] = out
	return out
}

// update returns the state of the kernel after d was applied to s to reach the content. A nil s
// means that there was no table.
func (want *content) update(s *state, d *difference, cached *chains.Fragments) *state {
	if s == nil || d.anew {
		s = &state{chains: map[string]chains.Summary{}, sets: map[string]sets.Union{},
			counters: map[string]bool{}}
	}
	for _, name := range d.counters {
		s.counters[name] = true
	}

	for _, name := range slices.Concat(d.addChains, d.refill) {
		s.chains[name] = want.chains[name].Summary(cached)
	}
	for _, name := range d.delChains {
		delete(s.chains, name)
	}
	// Sets that stay are replaced too, so the next diff finds identical parts without comparing
	// keys.
	for name, set := range want.sets {
		s.sets[name] = set.Elements
	}
	for _, name := range d.delSets {
		delete(s.sets, name)
	}
	return s
}

// write adds the difference to a transaction. The kernel resolves names in the order of the
// messages: sets before the rules that look them up, chains before the rules that go there.
func (d *difference) write(t *message.Transaction, want *content, cached *chains.Fragments) {
	table := ourTable.Name
	t.AddTable(table)
	if d.anew {
		t.DeleteTable(table)
		t.AddTable(table)
	}
	for _, name := range d.counters {
		t.AddCounter(table, name, 0)
	}
	for _, name := range d.addSets {
		s := want.sets[name]
		t.AddSet(table, name, s)
		t.AddElements(table, name, missing(s.Elements, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(d.remove)) {
		t.DeleteElements(table, name, d.remove[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.add)) {
		t.AddElements(table, name, d.add[name])
	}

	for _, name := range slices.Concat(d.addChains, d.refill) {
		t.AddChain(table, name, want.chains[name])
	}
	for _, name := range slices.Concat(d.refill, d.delChains) {
		if e, has := d.edits[name]; has {
			e.write(t, table, name)
		} else {
			t.FlushChain(table, name)
		}
	}
	for _, name := range slices.Concat(d.addChains, d.refill) {
		if _, has := d.edits[name]; !has {
			t.AddRules(table, name, want.chains[name].Rules(cached))
		}
	}

	for _, name := range d.delChains {
		t.DeleteChain(table, name)
	}
	for _, name := range d.delSets {
		t.DeleteSet(table, name)
	}
}

// shrinks reports whether less may be allowed than before. If a tier denies, even a new element of
// a set may allow less.
func (d *difference) shrinks(want *content) bool {
	if len(d.addChains)+len(d.delChains)+len(d.refill) > 0 {
		return true
	}
	for name := range d.remove {
		if !sets.IsInside(name) {
			return true
		}
	}
	for name := range d.add {
		if want.chains[policy.DenyAdmin.String()] != nil && !sets.IsMembers(name) && !sets.IsInside(name) {
			return true
		}
	}
	return false
}
