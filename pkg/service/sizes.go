package service

// Sizes returns how many entries of each map are in use once the changes of the last Plan are made.
// Slots are those that are given out: entry 0 has its own, and a service the next power of two.
func (p *Planner) Sizes() Limits {
	free := p.room.slots
	for _, x := range p.freed {
		free += 1 << orderOf(x.count)
	}
	return Limits{
		Fronts: uint32(len(p.fronts)), Slots: p.limits.Slots - free,
		Members: uint32(len(p.members)), Sources: uint32(len(p.sources)),
	}
}
