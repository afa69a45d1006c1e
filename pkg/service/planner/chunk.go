package planner

import (
	"github.com/kubeveil/kubeveil/pkg/service/buddy"

	"github.com/kubeveil/kubeveil/pkg/service"
)

func (p *Planner) take(count int) (buddy.Extent, bool) {
	x, ok := p.room.Take(count)
	if ok {
		p.use(x)
	}
	return x, ok
}

// chunksOf returns the chunks from first up to end in which an extent is, and the number of its
// slots in each. An extent is within a chunk, or takes whole chunks, since its size is a power of
// two at which it is aligned.
func chunksOf(x buddy.Extent) (first, end, each uint32) {
	first = x.First / service.ChunkSlots
	return first, first + (x.Size()-1)/service.ChunkSlots + 1, min(x.Size(), service.ChunkSlots)
}

func (p *Planner) use(x buddy.Extent) {
	first, end, each := chunksOf(x)
	for c := first; c < end; c++ {
		p.inUse[c] += each
	}
}

// unuse notes that an extent is not in use any more, and returns the chunks without others. Chunk 0,
// which has entry 0, is not among them.
func (p *Planner) unuse(x buddy.Extent) (unused []uint32) {
	first, end, each := chunksOf(x)
	for c := first; c < end; c++ {
		if p.inUse[c] -= each; p.inUse[c] == 0 {
			delete(p.inUse, c)
			if c > 0 {
				unused = append(unused, c)
			}
		}
	}
	return unused
}
