package service

// Batch holds entries of one map in the form of the batch calls of bpf(2).
type Batch[K, V any] struct {
	Keys   []K
	Values []V
}

func (b *Batch[K, V]) Put(k K, v V) {
	b.Keys = append(b.Keys, k)
	b.Values = append(b.Values, v)
}

// Run is a list of backends in consecutive slots.
type Run struct {
	First    uint32
	Backends Backends
}

// Changes are writes to the maps. The caller must make them field by field in this order, and
// complete each field before the next. The order within a field does not matter.
type Changes struct {
	// Entries that no program reads yet.
	Runs []Run
	// Room is the number of slots that are in use after this and the next changes. 0 means that it
	// is not known. It lets the writer make all chunks at once.
	Room         uint32
	SourceRanges []SourceRangeKey
	// Entries that programs read change one frontend at a time. New frontends are written before
	// old frontends are deleted, so an address that moves to another service is always served.
	Frontends     Batch[FrontendKey, Frontend]
	DropFrontends []FrontendKey
	// Entries that no program reads any more.
	DropSourceRanges []SourceRangeKey
	// UnusedChunks are chunks whose last run these changes free. Changes with some have other writes
	// too.
	UnusedChunks []uint32
	// LostUDP reports whether a UDP address loses a backend that may have flows: the backend is gone,
	// or the address moves to another service or gets another policy.
	LostUDP bool
	// Again reports whether services are left that Plan did not decide about, or a service was
	// refused for lack of room that these changes free. The caller must then call Plan again after
	// them.
	Again bool
}

// Empty reports whether there is nothing to write.
func (c Changes) Empty() bool { return c.Writes() == 0 }

// Writes returns the number of entries to write or delete.
func (c Changes) Writes() int {
	return c.Slots() + len(c.SourceRanges) + len(c.Frontends.Keys) + len(c.DropFrontends) +
		len(c.DropSourceRanges)
}

// Slots returns the number of backend slots to write.
func (c Changes) Slots() int {
	n := 0
	for _, r := range c.Runs {
		n += r.Backends.Len()
	}
	return n
}
