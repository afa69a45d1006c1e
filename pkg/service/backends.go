package service

import (
	"slices"
	"sort"
)

// Backends is a list of backends that does not change. The zero value is an empty list. A backend
// takes 4 bytes if all have IPv4 addresses and the same port, else 24.
type Backends struct {
	port  [2]byte
	addrs [][4]byte // empty if mixed has the list
	local []uint32  // the indexes of addrs with FlagLocal, sorted
	mixed []Backend
}

// mappedPrefix are the first bytes of an IPv4 address in a Backend.
var mappedPrefix = [12]byte{10: 0xff, 11: 0xff}

// BackendsOf returns a list with a copy of these backends.
func BackendsOf(list []Backend) Backends {
	local := 0
	for _, b := range list {
		if b.Port != list[0].Port || [12]byte(b.Addr[:12]) != mappedPrefix ||
			b.Flags&^FlagLocal != 0 || b.Pad != 0 {
			return Backends{mixed: slices.Clone(list)}
		}
		local += int(b.Flags & FlagLocal)
	}
	if len(list) == 0 {
		return Backends{}
	}

	p := Backends{port: list[0].Port, addrs: make([][4]byte, len(list))}
	if local > 0 {
		p.local = make([]uint32, 0, local)
	}
	for i, b := range list {
		p.addrs[i] = [4]byte(b.Addr[12:])
		if b.Flags != 0 {
			p.local = append(p.local, uint32(i))
		}
	}
	return p
}

// Len returns the number of backends.
func (p Backends) Len() int { return len(p.addrs) + len(p.mixed) }

// At returns the i-th backend.
func (p Backends) At(i int) Backend {
	var one [1]Backend
	p.Copy(one[:], i)
	return one[0]
}

// Copy copies backends, from the one with index from on, until to is full or the list ends. It
// returns their number.
func (p Backends) Copy(to []Backend, from int) int {
	if len(p.addrs) == 0 {
		return copy(to, p.mixed[from:])
	}
	n := min(len(to), len(p.addrs)-from)
	for i, a := range p.addrs[from : from+n] {
		b := Backend{Port: p.port}
		copy(b.Addr[:], mappedPrefix[:])
		copy(b.Addr[12:], a[:])
		to[i] = b
	}
	first, _ := slices.BinarySearch(p.local, uint32(from))
	for _, i := range p.local[first:] {
		if int(i) >= from+n {
			break
		}
		to[int(i)-from].Flags = FlagLocal
	}
	return n
}

// Equal reports whether p and o have the same backends in the same order.
func (p Backends) Equal(o Backends) bool {
	return p.port == o.port && slices.Equal(p.addrs, o.addrs) &&
		slices.Equal(p.local, o.local) && slices.Equal(p.mixed, o.mixed)
}

// Reach moves i to the first backend that is not before b, and reports whether it has the address
// and port of b. The list is sorted.
func (p Backends) Reach(i *int, b Backend) bool {
	for ; *i < p.Len(); *i++ {
		if order := CompareBackend(p.At(*i), b); order >= 0 {
			return order == 0
		}
	}
	return false
}

// Replace returns the list without the backends at the places of gone, and with those of add. All
// lists are sorted. No place in add is left in the list.
func (p Backends) Replace(gone, add []Backend) Backends {
	packs := len(p.addrs) > 0 && !slices.ContainsFunc(add, func(b Backend) bool {
		return b.Port != p.port || [12]byte(b.Addr[:12]) != mappedPrefix
	})
	next := Backends{port: p.port, addrs: make([][4]byte, 0, len(p.addrs)+len(add))}
	var unpacked []Backend
	if !packs {
		unpacked = make([]Backend, 0, p.Len()+len(add))
	}

	from := 0
	copyTo := func(end int) {
		if !packs {
			n := len(unpacked)
			unpacked = unpacked[:n+end-from]
			from += p.Copy(unpacked[n:], from)
			return
		}
		shift := len(next.addrs) - from
		next.addrs = append(next.addrs, p.addrs[from:end]...)
		first, _ := slices.BinarySearch(p.local, uint32(from))
		for _, i := range p.local[first:] {
			if int(i) >= end {
				break
			}
			next.local = append(next.local, uint32(int(i)+shift))
		}
		from = end
	}

	eachEdit(gone, add, func(b Backend, adds bool) {
		i := sort.Search(p.Len(), func(i int) bool { return CompareBackend(p.At(i), b) >= 0 })
		copyTo(max(from, i))
		if adds && !packs {
			unpacked = append(unpacked, b)
		} else if adds {
			if b.Flags&FlagLocal != 0 {
				next.local = append(next.local, uint32(len(next.addrs)))
			}
			next.addrs = append(next.addrs, [4]byte(b.Addr[12:]))
		} else if i < p.Len() && CompareBackend(p.At(i), b) == 0 {
			from = i + 1
		}
	})
	copyTo(p.Len())
	if len(next.addrs) == 0 {
		return BackendsOf(unpacked)
	}
	return next
}

// eachEdit calls edit for each backend of two sorted lists, in their order. Of one place, that of
// gone comes first.
func eachEdit(gone, add []Backend, edit func(b Backend, adds bool)) {
	for _, b := range add {
		for len(gone) > 0 && CompareBackend(gone[0], b) <= 0 {
			edit(gone[0], false)
			gone = gone[1:]
		}
		edit(b, true)
	}
	for _, b := range gone {
		edit(b, false)
	}
}

// Has reports whether the sorted list has a backend with the address and port of b.
func (p Backends) Has(b Backend) bool {
	_, found := sort.Find(p.Len(), func(i int) int { return CompareBackend(b, p.At(i)) })
	return found
}
