package drop

import (
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Size is how many packets a Feature keeps.
const Size = 4096

// Ring keeps the last packets, up to a size. If it is full, an owner with the most packets loses
// its oldest. So an owner keeps its equal share, however many packets others have. Make one with
// NewRing. Its methods may be called concurrently.
type Ring struct {
	mu   sync.Mutex
	size int
	// number is the number of the last packet.
	number uint64
	// held are the packets, the oldest first. owned counts them by owner.
	held  []*held
	owned map[string]int
}

type held struct {
	owner string
	telemetry.DroppedPacket
}

// NewRing makes a Ring for so many packets, whose numbers are larger than number.
func NewRing(size int, number uint64) *Ring {
	return &Ring{size: size, number: number, owned: map[string]int{}}
}

// Add adds a packet of an owner, and gives it the next number.
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

// After returns the packets with larger numbers that which selects, the oldest first, and the
// number of the last packet of all.
func (r *Ring) After(number uint64,
	which func(telemetry.DroppedPacket) bool) (out []telemetry.DroppedPacket, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out = []telemetry.DroppedPacket{}
	for _, h := range r.held {
		if h.Number > number && which(h.DroppedPacket) {
			out = append(out, h.DroppedPacket)
		}
	}
	return out, r.number
}
