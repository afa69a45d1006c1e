package table

// BoxAll makes boxes of all lines that can be one, however few they are. Call it before Apply.
func (t *Table) BoxAll() { t.planner.boxed = true }
