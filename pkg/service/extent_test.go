package service

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

func TestExtentsNeverOverlapAndAllComeBack(t *testing.T) {
	const slots = 2048
	rapid.Check(t, func(t *rapid.T) {
		e := newExtents(slots)
		var used [slots]bool
		var held []extent
		mark := func(x extent, to bool) {
			for i := x.first; i < x.first+1<<orderOf(x.count); i++ {
				if i < apiSlots || used[i] == to {
					t.Fatalf("slot %d of %v belongs to entry 0 or to another extent", i, x)
				}
				used[i] = to
			}
		}

		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				mark(held[i], false)
				e.give(held[i])
				held = append(held[:i], held[i+1:]...)
				continue
			}
			count := rapid.IntRange(1, 300).Draw(t, "count")
			has := e.has(count)
			x, ok := e.take(count)
			if ok != has {
				t.Fatalf("room for %d: %t, taken: %t", count, has, ok)
			}
			if ok {
				mark(x, true)
				held = append(held, x)
			}
		}

		free := uint32(0)
		for _, order := range e.free {
			free += 1 << order
		}

		if free != e.slots {
			t.Fatalf("%d slots are free, and %d are counted", free, e.slots)
		}

		// Another allocator reserves the held extents, each of them only once.
		other := newExtents(slots)
		for _, x := range rapid.Permutation(held).Draw(t, "order") {
			if !other.reserve(x) || other.reserve(x) {
				t.Fatalf("%v is not reserved exactly once", x)
			}
		}

		for _, x := range held {
			other.give(x)
			e.give(x)
		}

		if want := newExtents(slots).free; !maps.Equal(e.free, want) ||
			!maps.Equal(other.free, want) {
			t.Fatalf("free are %v and %v, want %v", e.free, other.free, want)
		}
		if want := newExtents(slots).slots; e.slots != want || other.slots != want {
			t.Fatalf("%d and %d slots are counted as free, want %d", e.slots, other.slots, want)
		}
	})
}

func TestExtentsThatCannotBe(t *testing.T) {
	e := newExtents(1024)
	for name, x := range map[string]extent{
		"entry 0's": {0, 4}, "not aligned": {258, 4}, "beyond the end": {1024, 4},
		"too long": {512, 2048}, "empty": {512, 0}, "huge": {512, 1<<32 - 1},
	} {
		if e.reserve(x) {
			t.Errorf("%s: %v is reserved", name, x)
		}
	}
}
