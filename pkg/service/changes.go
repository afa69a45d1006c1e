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

// Changes are writes to the maps. Make them field by field in this order, each whole before the
// next. The order within a field does not matter.
type Changes struct {
	// Entries that no program reads yet.
	Backends     Batch[uint32, Backend]
	SourceRanges []SourceRangeKey
	Members      Batch[MemberKey, Member]
	// Entries that programs read change one frontend at a time. New frontends come before old
	// ones go, so an address that moves to another service is always served.
	Frontends     Batch[FrontendKey, Frontend]
	DropFrontends []FrontendKey
	// Entries that no program reads any more.
	LateMembers      Batch[MemberKey, Member]
	DropMembers      []MemberKey
	DropSourceRanges []SourceRangeKey
	// MovedUDP reports that an address of UDP moves to another service or gets another policy,
	// though no member of the former backends goes.
	MovedUDP bool
	// Again reports that a service was refused for room that these changes free. Plan again
	// after them.
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
