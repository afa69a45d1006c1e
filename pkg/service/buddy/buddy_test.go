package buddy

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

const reserved = 256

func TestExtentsNeverOverlapAndAllComeBack(t *testing.T) {
	const slots = 2048
	rapid.Check(t, func(t *rapid.T) {
		e := New(slots, reserved)
		var used [slots]bool
		var held []Extent
		mark := func(x Extent, to bool) {
			for i := x.First; i < x.First+x.Size(); i++ {
				if i < reserved || used[i] == to {
					t.Fatalf("slot %d of %v is reserved or belongs to another extent", i, x)
				}
				used[i] = to
			}
		}

		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				mark(held[i], false)
				e.Give(held[i])
				held = append(held[:i], held[i+1:]...)
				continue
			}
			count := rapid.IntRange(1, 300).Draw(t, "count")
			has := e.Has(count)
			x, ok := e.Take(count)
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
		other := New(slots, reserved)
		for _, x := range rapid.Permutation(held).Draw(t, "order") {
			if !other.Reserve(x) || other.Reserve(x) {
				t.Fatalf("%v is not reserved exactly once", x)
			}
		}

		for _, x := range held {
			other.Give(x)
			e.Give(x)
		}

		if want := New(slots, reserved).free; !maps.Equal(e.free, want) ||
			!maps.Equal(other.free, want) {
			t.Fatalf("free are %v and %v, want %v", e.free, other.free, want)
		}
		if want := New(slots, reserved).slots; e.slots != want || other.slots != want {
			t.Fatalf("%d and %d slots are counted as free, want %d", e.slots, other.slots, want)
		}
	})
}

func TestExtentsThatCannotBe(t *testing.T) {
	e := New(1024, reserved)
	for name, x := range map[string]Extent{
		"entry 0's": {0, 4}, "not aligned": {258, 4}, "beyond the end": {1024, 4},
		"too long": {512, 2048}, "empty": {512, 0}, "huge": {512, 1<<32 - 1},
	} {
		if e.Reserve(x) {
			t.Errorf("%s: %v is reserved", name, x)
		}
	}
}
