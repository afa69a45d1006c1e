package quota

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// plainShare returns the names that fit by name, and the first that does not.
func plainShare(limit int, objects map[string]int) (kept []string, from string) {
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if sum += objects[name]; sum > limit {
			return kept, name
		}
		kept = append(kept, name)
	}
	return kept, ""
}

// Which objects of a list are kept follows from the objects alone. Later changes never exceed the
// limit, and keep nothing from the first name on that is left out.
func TestShareKeepsTheFirstByName(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		objects := map[string]int{}
		for i := range 40 {
			objects[fmt.Sprintf("o%02d", i)] = 1 + r.IntN(12)
		}
		s := NewShare(60, 1)
		for name, elements := range objects {
			s.Put("shop", name, elements, true)
		}
		p := s.spaces["shop"]
		kept, from := plainShare(60, objects)
		if got := slices.Sorted(maps.Keys(p.objects)); !slices.Equal(got, kept) || p.from != from ||
			p.left != len(objects)-len(kept) {
			t.Fatalf("kept %v from %q, %d left; want %v from %q", got, p.from, p.left, kept, from)
		}

		for range 100 {
			name := fmt.Sprintf("o%02d", r.IntN(40))
			if r.IntN(2) > 0 {
				s.Put("shop", name, 1+r.IntN(12), false)
			} else {
				s.Remove("shop", name)
			}
			sum := 0
			for name, c := range p.objects {
				sum += c.Elements
				if name >= p.from {
					t.Fatalf("%s is kept, and what is from %s on is left out", name, p.from)
				}
			}
			if sum != p.sum || sum > 60 || len(p.last.all) != len(p.objects) {
				t.Fatalf("%d elements, counted %d", sum, p.sum)
			}
		}

		p.from = ""
		s.Put("shop", "o00", 1, true)
		for name := range p.objects {
			s.Remove("shop", name)
		}
		if len(s.Namespaces()) > 0 {
			t.Errorf("%v remain without objects", s.Namespaces())
		}
	}
}
