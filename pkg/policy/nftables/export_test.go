package nftables

// BoxAll makes boxes of all lines that can be boxes, however few they are. Call it before Apply.
func (t *PolicyTable) BoxAll() { t.maker.chains.Boxed = true }

// Reads returns how often the elements of sets were read.
func (t *PolicyTable) Reads() int { return t.reads }

// AfterSlice makes the table call f after each slice of a change. An error of f ends the change.
func (t *PolicyTable) AfterSlice(f func() error) { t.afterSlice = f }
