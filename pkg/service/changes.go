package service

// Batch is entries of one map, as the batch calls of bpf(2) take them.
type Batch[K, V any] struct {
	Keys   []K
	Values []V
}

func (b *Batch[K, V]) put(k K, v V) {
	b.Keys = append(b.Keys, k)
	b.Values = append(b.Values, v)
}

// Changes are writes to the maps, to be made field by field in this order, each
// of them whole before the next begins. The order within a field means nothing.
type Changes struct {
	// What has no reader yet.
	Backends     Batch[uint32, Backend]
	SourceRanges []SourceRangeKey
	Members      Batch[MemberKey, Member]
	// What readers see change, a frontend at a time. Frontends come before they go, so that an
	// address that one service leaves to another is never without.
	Frontends     Batch[FrontendKey, Frontend]
	DropFrontends []FrontendKey
	// What has no reader any more.
	LateMembers      Batch[MemberKey, Member]
	DropMembers      []MemberKey
	DropSourceRanges []SourceRangeKey
	// MovedUDP is that an address of UDP is another service's, or has another of its policies, from
	// now on: no member of the former backends need go.
	MovedUDP bool
	// Again is that a service was refused for room that these changes free: once they are made,
	// Plan once more.
	Again bool
}

// Empty reports whether there is nothing to write.
func (c Changes) Empty() bool { return c.Writes() == 0 }

// Writes is the number of entries to write or delete.
func (c Changes) Writes() int {
	return len(c.Backends.Keys) + len(c.SourceRanges) + len(c.Members.Keys) +
		len(c.Frontends.Keys) +
		len(c.DropFrontends) + len(c.LateMembers.Keys) + len(c.DropMembers) +
		len(c.DropSourceRanges)
}
