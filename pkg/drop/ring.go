package drop

import (
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Size is the maximum number of packets that a Feature keeps.
const Size = 4096

// Ring keeps the last packets, up to a size. If it is full, Add evicts the oldest packet of the
// owners with the most packets. So each owner keeps an equal share, even if another owner adds many
// packets. Make a Ring with NewRing. Its methods may be called concurrently.
type Ring struct {
	mu   sync.Mutex
	size int
	// number is the number of the packet that was added last.
	number uint64
	// held holds the packets, oldest first. owned counts them by owner.
	held  []*held
	owned map[string]int
}

type held struct {
	owner string
	telemetry.DroppedPacket
}

// NewRing returns a Ring for at most size packets. It numbers packets from number+1.
func NewRing(size int, number uint64) *Ring {
	return &Ring{size: size, number: number, owned: map[string]int{}}
}

// Add adds a packet of an owner and sets its Number.
func (r *Ring) Add(owner string, p telemetry.DroppedPacket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	p.Number = r.number
	r.held = append(r.held, &held{owner, p})
	if r.owned[owner]++; len(r.held) > r.size {
		r.evictLocked()
	}
}

// evictLocked removes the oldest packet of the owners with the most packets.
func (r *Ring) evictLocked() {
	most := 0
	for _, n := range r.owned {
		most = max(most, n)
	}
	i := slices.IndexFunc(r.held, func(h *held) bool { return r.owned[h.owner] == most })
	owner := r.held[i].owner
	if r.owned[owner]--; r.owned[owner] == 0 {
		delete(r.owned, owner)
	}
	r.held = slices.Delete(r.held, i, i+1)
}

// After returns at most `most` packets that have a larger number and that which selects, oldest
// first. last is the number up to which it looked: the number of the packet that was added last, or
// a smaller one if there are more packets.
func (r *Ring) After(number uint64, most int,
	which func(telemetry.DroppedPacket) bool) (out []telemetry.DroppedPacket, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out = []telemetry.DroppedPacket{}
	for _, h := range r.held {
		if h.Number <= number || !which(h.DroppedPacket) {
			continue
		}
		if len(out) >= most {
			return out, out[most-1].Number
		}
		out = append(out, h.DroppedPacket)
	}
	return out, r.number
}
