package policy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A SetMap is a map after any additions, changes and removals, and earlier ones stay as they were.
func TestSetMapIsAMap(t *testing.T) {
	type version struct {
		m    SetMap
		want map[string]*Set
	}
	rapid.Check(t, func(t *rapid.T) {
		versions := []version{{want: map[string]*Set{}}}
		for range rapid.IntRange(1, 12).Draw(t, "versions") {
			last := versions[len(versions)-1]
			want, sets := maps.Clone(last.want), map[string]*Set{}
			for range rapid.SampledFrom([]int{0, 1, 5, maxChanged}).Draw(t, "sets") {
				name := fmt.Sprint(rapid.IntRange(0, 2*maxChanged).Draw(t, "name"))
				if sets[name] = nil; rapid.IntRange(0, 2).Draw(t, "kept") > 0 {
					sets[name] = &Set{Name: name}
				}
				if want[name] = sets[name]; sets[name] == nil {
					delete(want, name)
				}
			}
			versions = append(versions, version{last.m.With(sets), want})
		}

		for i, v := range versions {
			got := maps.Collect(v.m.All())
			if !maps.Equal(got, v.want) || v.m.Len() != len(got) {
				t.Fatalf("version %d: %d sets, Len %d, want %d", i, len(got), v.m.Len(),
					len(v.want))
			}
			other := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "other")]
			changed, ok := v.m.ChangedSince(other.m)
			for n := range 2*maxChanged + 1 {
				name := fmt.Sprint(n)
				if v.m.Get(name) != v.want[name] {
					t.Fatalf("version %d: set %s", i, name)
				}
				if ok && slices.Contains(changed, name) != (v.want[name] != other.want[name]) {
					t.Fatalf("version %d: changes %q since another", i, changed)
				}
			}
		}
	})
}
