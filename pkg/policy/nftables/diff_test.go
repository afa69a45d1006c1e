package nftables

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// missing returns the same keys for unions and for plain sets, regardless of the parts that two
// unions share.
func TestMissingOfUnionsDependsOnTheirKeysOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := make([]sets.Elements, 6)
		for i := range pool {
			pool[i] = sets.Elements{}
			for _, k := range rapid.SliceOfN(rapid.IntRange(0, 9), 0, 5).Draw(t, "part") {
				pool[i][sets.Key([]byte{byte(k)})] = true
			}
		}
		draw := func() (u sets.Union, all sets.Elements) {
			u, all = rapid.SliceOfN(rapid.SampledFrom(pool), 1, 5).Draw(t, "union"), sets.Elements{}
			for _, part := range u {
				maps.Copy(all, part)
			}
			return u, all
		}

		known := parts{} // as of one comparison of many sets
		for range 4 {
			a, allOfA := draw()
			b, allOfB := draw()
			want := slices.Sorted(maps.Keys(allOfA))
			want = slices.DeleteFunc(want, func(k string) bool { return allOfB[k] })
			if got := known.missing(a, b); !slices.Equal(got, want) {
				t.Fatalf("missing keys %q, want %q", got, want)
			}
		}
	})
}
