package service

import "math/bits"

// extent is a run of slots. It also owns the slots after count, up to the next power of two.
type extent struct{ first, count uint32 }

// extents is a buddy allocator for runs of slots. The time of take and give grows with the
// logarithm of the number of slots. Free neighbours merge.
type extents struct {
	slots uint32         // the number of free slots
	free  map[uint32]int // the order of each free block, by first slot
	stack [][]uint32     // first slots of blocks that are or were free, by order
}

// newExtents returns extents in which all slots are free except the first ones, which are reserved
// for entry 0.
func newExtents(slots uint32) *extents {
	top := bits.TrailingZeros32(slots)
	e := &extents{free: make(map[uint32]int), stack: make([][]uint32, top+1)}
	for order := bits.TrailingZeros32(apiSlots); order < top; order++ {
		e.push(1<<order, order)
		e.slots += 1 << order
	}
	return e
}

func (e *extents) push(first uint32, order int) {
	e.free[first] = order
	e.stack[order] = append(e.stack[order], first)
}

// pop returns a free block of exactly this order.
func (e *extents) pop(order int) (uint32, bool) {
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

// take allocates count slots, at least one. It returns false if there is no room.
func (e *extents) take(count int) (extent, bool) {
	want := orderOf(uint32(count))
	for order := want; order < len(e.stack); order++ {
		first, ok := e.pop(order)
		if !ok {
			continue
		}
		e.split(first, order, want)
		e.slots -= 1 << want
		return extent{first, uint32(count)}, true
	}
	return extent{}, false
}

// has reports whether take would find room for count slots.
func (e *extents) has(count int) bool {
	for order := orderOf(uint32(count)); order < len(e.stack); order++ {
		for s := e.stack[order]; len(s) > 0; s = e.stack[order] {
			if o, ok := e.free[s[len(s)-1]]; ok && o == order {
				return true
			}
			e.stack[order] = s[:len(s)-1]
		}
	}
	return false
}

// split frees all of a block except its first part of order want.
func (e *extents) split(first uint32, order, want int) {
	for order > want {
		order--
		e.push(first+1<<order, order)
	}
}

// give frees an extent that take or reserve allocated.
func (e *extents) give(x extent) {
	first, order := x.first, orderOf(x.count)
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

// reserve allocates an extent that an earlier process allocated. It returns false if x is not valid
// or not free.
func (e *extents) reserve(x extent) bool {
	if x.count == 0 || x.count > 1<<(len(e.stack)-1) {
		return false
	}
	want := orderOf(x.count)
	if x.first&(1<<want-1) != 0 {
		return false
	}

	for order := want; order < len(e.stack); order++ {
		first := x.first &^ (1<<order - 1)
		if o, ok := e.free[first]; !ok || o != order {
			continue
		}
		delete(e.free, first)
		e.slots -= 1 << want
		for order > want {
			order--
			half := first + 1<<order
			if x.first >= half {
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
