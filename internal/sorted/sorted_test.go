package sorted

import (
	"cmp"
	"slices"
	"testing"
)

// item is an element whose key orders it.
type item struct{ key, value int }

func TestDiff(t *testing.T) {
	list := func(keys ...int) (items []item) {
		for _, k := range keys {
			items = append(items, item{key: k})
		}
		return items
	}
	changed := list(1, 2, 3)
	changed[1].value = 7

	for name, tt := range map[string]struct {
		was, is, gone, fresh []item
		limit                int
		ok                   bool
	}{
		"nothing":               {nil, nil, nil, nil, 0, true},
		"the first":             {list(), list(1), nil, list(1), 1, true},
		"the last goes":         {list(1), nil, list(1), nil, 1, true},
		"both ends":             {list(2, 3), list(1, 2), list(3), list(1), 2, true},
		"an element changes":    {list(1, 2, 3), changed, list(2), changed[1:2], 2, true},
		"one more than allowed": {list(2, 3), list(1, 2), nil, nil, 1, false},
		"not sorted":            {list(2, 1), list(2, 3), nil, nil, 9, false},
		"twice":                 {list(1), list(1, 1), nil, nil, 9, false},
	} {
		t.Run(name, func(t *testing.T) {
			gone, fresh, ok := Diff(tt.was, tt.is, tt.limit,
				func(a, b item) int { return cmp.Compare(a.key, b.key) },
				func(a, b item) bool { return a == b })
			if !slices.Equal(gone, tt.gone) || !slices.Equal(fresh, tt.fresh) || ok != tt.ok {
				t.Errorf("gone %v, fresh %v, %t", gone, fresh, ok)
			}
			if ok && (gone == nil || fresh == nil) {
				t.Error("a list is nil")
			}
		})
	}
}
