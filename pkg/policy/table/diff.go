package table

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// difference is what has to change, by name, sorted. Pure.
type difference struct {
	// anew has the table made again: it is not there, or has a chain at another hook.
	anew                 bool
	counters             []string
	addChains, delChains []string
	// refill are chains that stay and have other rules.
	refill           []string
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

func diff(have *state, want *content) *difference {
	d := &difference{add: map[string][]string{}, remove: map[string][]string{}}
	for name, c := range want.chains {
		if have != nil && have.chains[name] != nil && have.chains[name][0] != c.texts()[0] {
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
		switch texts, has := have.chains[name]; {
		case !has:
			d.addChains = append(d.addChains, name)
		case &texts[0] != &c.texts()[0] && !slices.Equal(texts, c.texts()):
			d.refill = append(d.refill, name)
		}
	}
	for name := range have.chains {
		if want.chains[name] == nil {
			d.delChains = append(d.delChains, name)
		}
	}

	for name, s := range want.sets {
		got, has := have.sets[name]
		switch {
		case !has:
			d.addSets = append(d.addSets, name)
		case same(got, s.elements):
		default:
			if add := missing(s.elements, got); len(add) > 0 {
				d.add[name] = add
			}
			if remove := missing(got, s.elements); len(remove) > 0 {
				d.remove[name] = remove
			}
		}
	}
	for name := range have.sets {
		if want.sets[name] == nil {
			d.delSets = append(d.delSets, name)
		}
	}
	for _, names := range [][]string{d.addChains, d.delChains, d.refill, d.addSets, d.delSets} {
		slices.Sort(names)
	}
	return d
}

// same reports whether two are one map: sets of peers that did not change are not compared.
func same(a, b elements) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

// missing returns the keys that a has and b has not, sorted.
func missing(a, b elements) (out []string) {
	for k := range a {
		if !b[k] {
			out = append(out, k)
		}
	}
	// By address: the kernel refuses the starts of intervals that come without their ends.
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(a[1:], b[1:]) })
	return out
}

// state is the kernel's once it has the content.
func (want *content) state() *state {
	out := &state{chains: map[string][]string{}, sets: map[string]elements{},
		counters: map[string]bool{}}
	for name, c := range want.chains {
		out.chains[name] = c.texts()
	}
	for name, s := range want.sets {
		out.sets[name] = s.elements
	}
	for _, name := range policy.DropReasons {
		out.counters[name] = true
	}
	return out
}

// write sends the difference as one transaction. The kernel resolves names in the order of the
// messages: sets before the rules that look them up, chains before the rules that go there.
func (d *difference) write(c *nftables.Conn, want *content) error {
	c.AddTable(ourTable)
	if d.anew {
		c.DelTable(ourTable)
		c.AddTable(ourTable)
	}
	for _, name := range d.counters {
		c.AddObj(&nftables.CounterObj{Table: ourTable, Name: name})
	}
	for _, name := range d.addSets {
		s := want.sets[name]
		if err := c.AddSet(s.kernel(name), nil); err != nil {
			return fmt.Errorf("add set %s: %w", name, err)
		}
		if err := s.change(c.SetAddElements, name, missing(s.elements, nil)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.remove)) {
		if err := want.sets[name].change(c.SetDeleteElements, name, d.remove[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.add)) {
		if err := want.sets[name].change(c.SetAddElements, name, d.add[name]); err != nil {
			return err
		}
	}

	for _, name := range slices.Concat(d.addChains, d.refill) {
		ch := &nftables.Chain{Table: ourTable, Name: name}
		if w := want.chains[name]; w.hook != nil {
			accept := nftables.ChainPolicyAccept
			ch.Type, ch.Hooknum, ch.Priority, ch.Policy = nftables.ChainTypeFilter, w.hook,
				&w.priority, &accept
		}
		c.AddChain(ch)
	}
	for _, name := range slices.Concat(d.refill, d.delChains) {
		c.FlushChain(&nftables.Chain{Table: ourTable, Name: name})
	}
	for _, name := range slices.Concat(d.addChains, d.refill) {
		ch := &nftables.Chain{Table: ourTable, Name: name}
		for _, r := range want.chains[name].rules {
			c.AddRule(&nftables.Rule{Table: ourTable, Chain: ch, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.text)})
		}
	}

	for _, name := range d.delChains {
		c.DelChain(&nftables.Chain{Table: ourTable, Name: name})
	}
	for _, name := range d.delSets {
		c.DelSet(&nftables.Set{Table: ourTable, Name: name})
	}
	return c.Flush()
}

func (s *set) kernel(name string) *nftables.Set {
	return &nftables.Set{Table: ourTable, Name: name, KeyType: s.key, Concatenation: s.concat,
		Interval: s.interval}
}

// chunk bounds the elements of one message, which is at most 64 KiB.
const chunk = 500

// change adds or removes elements.
func (s *set) change(do func(*nftables.Set, []nftables.SetElement) error, name string,
	keys []string) error {
	for part := range slices.Chunk(keys, chunk) {
		var list []nftables.SetElement
		for _, k := range part {
			list = append(list, nftables.SetElement{Key: []byte(k[1:]), IntervalEnd: k[0] == 1})
		}
		if err := do(s.kernel(name), list); err != nil {
			return fmt.Errorf("change set %s: %w", name, err)
		}
	}
	return nil
}
