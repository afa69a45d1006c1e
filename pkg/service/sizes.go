package service

// Sizes returns how many entries of each map are in use once the changes of the last Plan are made.
// BackendSlots counts allocated slots: the slots of entry 0, and for each group the next power of
// two.
func (p *Planner) Sizes() Limits {
	free := p.room.slots
	for _, x := range p.freed {
		free += 1 << orderOf(x.count)
	}
	return Limits{
		Frontends: uint32(len(p.frontends)), BackendSlots: p.limits.BackendSlots - free,
		Members: uint32(len(p.members)), SourceRanges: uint32(len(p.sources)),
	}
}
