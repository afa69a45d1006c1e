package planner

import "maps"

// PostponeAll makes Plan leave out every change until a draft of it is adopted.
func (p *Planner) PostponeAll() { p.postpones, p.all = true, true }

// Limit sets the budgets of lines: per namespace, of the node, and of the node while it is reduced.
func (p *Planner) Limit(namespace, node, meanwhile int) {
	p.limits = limits{namespace, node, meanwhile}
}

// LineCounts returns the lines in the chains of pods by namespace, if there are any.
func (p *Planner) LineCounts() map[string]int {
	lines := p.lineCounts()
	maps.DeleteFunc(lines, func(_ string, n int) bool { return n == 0 })
	return lines
}
