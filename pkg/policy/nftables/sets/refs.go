package sets

// Counts holds the sets that the rules of all chains look up, by name, each with the number of
// chains that look it up. The zero value is empty. A change costs time in proportion to the chains
// that are added and removed.
type Counts struct {
	References
	ofPorts, ofPeers, ofUnions, ofBoxes map[string]int
}

// Add counts the references of a chain. The first of equal sets is kept.
func (c *Counts) Add(r References) {
	if c.ports == nil {
		*c = Counts{newReferences(), map[string]int{}, map[string]int{}, map[string]int{},
			map[string]int{}}
	}
	enter(c.ports, c.ofPorts, r.ports)
	enter(c.peers, c.ofPeers, r.peers)
	enter(c.unions, c.ofUnions, r.unions)
	enter(c.boxes, c.ofBoxes, r.boxes)
}

// Remove subtracts the references of a chain.
func (c *Counts) Remove(r References) {
	leave(c.ports, c.ofPorts, r.ports)
	leave(c.peers, c.ofPeers, r.peers)
	leave(c.unions, c.ofUnions, r.unions)
	leave(c.boxes, c.ofBoxes, r.boxes)
}

func enter[V any](all map[string]V, count map[string]int, of map[string]V) {
	for name, v := range of {
		if count[name]++; count[name] == 1 {
			all[name] = v
		}
	}
}

func leave[V any](all map[string]V, count map[string]int, of map[string]V) {
	for name := range of {
		if count[name]--; count[name] == 0 {
			delete(count, name)
			delete(all, name)
		}
	}
}
