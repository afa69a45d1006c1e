package quota

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// Which objects are dropped depends on the objects alone: each node drops the same.
func TestLargestObjectsOfANamespaceAreDropped(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var want map[string]bool
	for range 50 {
		a := NewAllowance(100)
		dropped := map[string]bool{}
		put := func(namespace, name string, elements int) {
			drop, restore := a.Put(namespace, name, Size{Elements: elements})
			for _, n := range drop {
				dropped[namespace+"/"+n] = true
			}
			for _, n := range restore {
				delete(dropped, namespace+"/"+n)
			}
			if elements == 0 {
				delete(dropped, namespace+"/"+name)
			}
		}
		for _, i := range r.Perm(40) {
			put("evil", fmt.Sprint("a", i), i%7)
			put("gone", fmt.Sprint("a", i), 100)
			put("good", fmt.Sprint("a", i), i%3)
		}
		for _, i := range r.Perm(40) {
			put("gone", fmt.Sprint("a", i), 0)
		}
		if want == nil {
			want = dropped
		}
		if !maps.Equal(want, dropped) || len(a.spaces) != 2 {
			t.Fatalf("%d namespaces, dropped %v and %v", len(a.spaces), want, dropped)
		}
	}

	// 6 + 5 + ... of 114 are 14 too many: three of the five with 6.
	if got := slices.Sorted(maps.Keys(want)); !slices.Equal(got,
		[]string{"evil/a13", "evil/a20", "evil/a27"}) {
		t.Errorf("dropped %v", got)
	}
}

// plainAllowance is an allowance that looks at all objects each time.
type plainAllowance struct {
	limit   int
	objects map[string]Size
}

// dropped returns the names that are dropped.
func (a plainAllowance) dropped() map[string]bool {
	sum, order := 0, []*counted{}
	for name, of := range a.objects {
		sum += of.Elements
		order = append(order, &counted{Size: of, name: name})
	}
	slices.SortFunc(order, func(x, y *counted) int {
		if x.before(y) {
			return -1
		}
		return 1
	})
	out := map[string]bool{}
	for _, c := range order {
		if sum <= a.limit {
			break
		}
		out[c.name] = true
		sum -= c.Elements
	}
	return out
}

// Objects come, change and go in any order: after each the same are dropped as if all were sorted.
func TestAllowanceDropsAsIfAllWereSorted(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		a := NewAllowance(60)
		plain := plainAllowance{60, map[string]Size{}}
		was := map[string]bool{}
		for range 300 {
			name, of := fmt.Sprint("o", r.IntN(30)), Size{Elements: r.IntN(12)}
			drop, restore := a.Put("shop", name, of)
			plain.objects[name] = of
			if of.Elements == 0 {
				delete(plain.objects, name)
			}
			want := plain.dropped()
			if name := differs(want, drop, restore, was, plain.objects); name != "" {
				t.Fatalf("dropped %v, want %v, kept again %v; %s is wrong", drop, want, restore, name)
			}
			was = want
		}
	}
}

// differs returns an object whose change to want was missed or reported wrongly, or "".
func differs(want map[string]bool, drop, restore []string, was map[string]bool,
	objects map[string]Size) string {
	for _, name := range drop {
		if was[name] || !want[name] {
			return name
		}
	}
	for _, name := range restore {
		if !was[name] || want[name] {
			return name
		}
	}
	for name := range objects {
		if want[name] && !was[name] && !slices.Contains(drop, name) ||
			!want[name] && was[name] && !slices.Contains(restore, name) {
			return name
		}
	}
	return ""
}
