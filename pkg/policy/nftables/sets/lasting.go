package sets

import (
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/arrange"
)

// A set of blocks has the elements that its name stands for, regardless of pods. So a Maker can have
// it from an earlier plan, or from a plan to come that another goroutine prepares.

// Lasting holds sets of blocks by their names without the suffix of a family. The sets never
// change.
type Lasting map[string]*made

// isLasting reports whether a union, or a set of boxes, is of blocks.
func isLasting(name string) bool {
	return strings.HasPrefix(name, boxPrefixes[arrange.BoxBlocks]) ||
		strings.HasPrefix(name, unionPrefix+"b")
}

// MakeLasting makes the unions and boxes of blocks to which chains refer. sets has all their
// blocks.
func MakeLasting(refer *Counts, sets policy.SetMap) Lasting {
	out := Lasting{}
	for name, peers := range refer.unions {
		if isLasting(name) {
			out[name] = unite(sets, peers)
		}
	}
	for name, b := range refer.boxes {
		if isLasting(name) {
			out[name] = b.make(sets)
		}
	}
	return out
}

// maxLasting bounds the elements of the sets that a Maker keeps for other plans. Beyond it the
// Maker forgets all of them, and makes again what it needs.
const maxLasting = 1 << 17

// Keep keeps sets for the plans to come, until Forget.
func (p *Maker) Keep(l Lasting) {
	for name, m := range l {
		if p.sets[name] == nil {
			p.spare(name, m)
		}
	}
}

// Forget forgets the sets that the last plan does not need.
func (p *Maker) Forget() { p.lasting, p.lastingSize = nil, 0 }

func (p *Maker) spare(name string, m *made) {
	if p.lasting[name] != nil {
		return
	}
	size := 0
	for _, s := range m.byFamily {
		if s != nil {
			for _, part := range s.Elements {
				size += len(part)
			}
		}
	}
	if p.lastingSize += size; p.lasting == nil || p.lastingSize > maxLasting {
		p.lasting, p.lastingSize = Lasting{}, size
	}
	p.lasting[name] = m
}
