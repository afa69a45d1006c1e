package table

// BoxAll makes boxes of all lines that can be one, however few they are. Call it before Apply.
func (t *Table) BoxAll() { t.planner.boxed = true }

// Reads returns how often the elements of sets were read.
func (t *Table) Reads() int { return t.reads }

// AfterSlice has f called behind each slice of a change; its error ends the change.
func (t *Table) AfterSlice(f func() error) { t.afterSlice = f }
