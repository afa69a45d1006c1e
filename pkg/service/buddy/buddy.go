package buddy

import (
	"maps"
	"math/bits"
)

// Extent is a run of slots. It also owns the slots after Count, up to the next power of two.
type Extent struct{ First, Count uint32 }

// Size returns the number of slots that x owns.
func (x Extent) Size() uint32 { return 1 << orderOf(x.Count) }

// Allocator allocates extents. The time of Take and Give grows with the logarithm of the number of
// slots. Free neighbours merge. Make it with New. It is for one goroutine.
type Allocator struct {
	slots uint32         // the number of free slots
	free  map[uint32]int // the order of each free block, by first slot
	stack [][]uint32     // first slots of blocks that are or were free, by order
}

// New returns an Allocator in which all slots are free except the first reserved ones. Both numbers
// are powers of two.
func New(slots, reserved uint32) *Allocator {
	top := bits.TrailingZeros32(slots)
	e := &Allocator{free: make(map[uint32]int), stack: make([][]uint32, top+1)}
	for order := bits.TrailingZeros32(reserved); order < top; order++ {
		e.push(1<<order, order)
		e.slots += 1 << order
	}
	return e
}

func (e *Allocator) push(first uint32, order int) {
	e.free[first] = order
	e.stack[order] = append(e.stack[order], first)
}

// pop returns a free block of exactly this order.
func (e *Allocator) pop(order int) (uint32, bool) {
	for s := e.stack[order]; len(s) > 0; s = e.stack[order] {
		first := s[len(s)-1]
		e.stack[order] = s[:len(s)-1]
		if o, ok := e.free[first]; ok && o == order {
			delete(e.free, first)
			return first, true
		}
	}
	return 0, false
}

func orderOf(count uint32) int { return bits.Len32(count - 1) }

// Take allocates count slots, at least one. It returns false if there is no room.
func (e *Allocator) Take(count int) (Extent, bool) {
	want := orderOf(uint32(count))
	for order := want; order < len(e.stack); order++ {
		first, ok := e.pop(order)
		if !ok {
			continue
		}
		e.split(first, order, want)
		e.slots -= 1 << want
		return Extent{first, uint32(count)}, true
	}
	return Extent{}, false
}

// Has reports whether Take would find room for count slots.
func (e *Allocator) Has(count int) bool {
	for order := orderOf(uint32(count)); order < len(e.stack); order++ {
		if first, ok := e.pop(order); ok {
			e.push(first, order)
			return true
		}
	}
	return false
}

// split frees all of a block except its first part of order want.
func (e *Allocator) split(first uint32, order, want int) {
	for order > want {
		order--
		e.push(first+1<<order, order)
	}
}

// Give frees an extent that Take or Reserve allocated.
func (e *Allocator) Give(x Extent) {
	first, order := x.First, orderOf(x.Count)
	e.slots += 1 << order
	for order < len(e.stack)-1 {
		buddy := first ^ 1<<order
		if o, ok := e.free[buddy]; !ok || o != order {
			break
		}
		delete(e.free, buddy)
		first &^= 1 << order
		order++
	}
	e.push(first, order)
}

// Reserve allocates an extent that an earlier process allocated. It returns false if x is not valid
// or not free.
func (e *Allocator) Reserve(x Extent) bool {
	if x.Count == 0 || x.Count > 1<<(len(e.stack)-1) {
		return false
	}
	want := orderOf(x.Count)
	if x.First&(1<<want-1) != 0 {
		return false
	}

	for order := want; order < len(e.stack); order++ {
		first := x.First &^ (1<<order - 1)
		if o, ok := e.free[first]; !ok || o != order {
			continue
		}
		delete(e.free, first)
		e.slots -= 1 << want
		for order > want {
			order--
			half := first + 1<<order
			if x.First >= half {
				e.push(first, order)
				first = half
			} else {
				e.push(half, order)
			}
		}
		return true
	}

	return false
}

// Free returns the number of free slots.
func (e *Allocator) Free() uint32 { return e.slots }

// Equal reports whether the same blocks are free in e and other.
func (e *Allocator) Equal(other *Allocator) bool { return maps.Equal(e.free, other.free) }
