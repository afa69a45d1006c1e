package service

// Batch holds entries of one map in the form of the batch calls of bpf(2).
type Batch[K, V any] struct {
	Keys   []K
	Values []V
}

func (b *Batch[K, V]) put(k K, v V) {
	b.Keys = append(b.Keys, k)
	b.Values = append(b.Values, v)
}

// Changes are writes to the maps. The caller must make them field by field in this order, and
// complete each field before the next. The order within a field does not matter.
type Changes struct {
	// Entries that no program reads yet.
	Backends     Batch[uint32, Backend]
	SourceRanges []SourceRangeKey
	Members      Batch[MemberKey, Member]
	// Entries that programs read change one frontend at a time. New frontends are written before
	// old frontends are deleted, so an address that moves to another service is always served.
	Frontends     Batch[FrontendKey, Frontend]
	DropFrontends []FrontendKey
	// Entries that no program reads any more.
	LateMembers      Batch[MemberKey, Member]
	DropMembers      []MemberKey
	DropSourceRanges []SourceRangeKey
	// MovedUDP reports whether a UDP address moves to another service or gets another policy
	// although no member of its former backends is deleted.
	MovedUDP bool
	// Again reports whether a service was refused for lack of room that these changes free. The
	// caller must then call Plan again after them.
	Again bool
}

// Empty reports whether there is nothing to write.
func (c Changes) Empty() bool { return c.Writes() == 0 }

// Writes returns the number of entries to write or delete.
func (c Changes) Writes() int {
	return len(c.Backends.Keys) + len(c.SourceRanges) + len(c.Members.Keys) +
		len(c.Frontends.Keys) +
		len(c.DropFrontends) + len(c.LateMembers.Keys) + len(c.DropMembers) +
		len(c.DropSourceRanges)
}
