package leak

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/packetring"
)

// ringBlocks is the size of a ring: 48 MiB, or 4 s of slow traffic. The ring must hold bursts,
// because the reader shares its CPU with the programs that it watches. retire is the time after
// which the kernel releases a block that is not full.
const (
	ringBlocks = 192
	retire     = 20 * time.Millisecond
)

// ring reads one link.
type ring struct {
	link string
	*packetring.Ring

	judged           atomic.Uint64 // frames that drain passed to its function
	packets, dropped uint64        // arrived and lost frames at the last count
	told             uint64        // the part of dropped that lost has returned
	takes            chan chan<- error
}

// openRing opens a ring with a number of blocks on a link of the calling thread's network
// namespace. Once it returns, every frame of the link enters the ring or is counted as dropped.
func openRing(link string, blocks int) (*ring, error) {
	r, err := packetring.Open(packetring.RingConfig{Link: link, Blocks: blocks, Retire: retire})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", link, err)
	}
	return &ring{link: link, Ring: r, takes: make(chan chan<- error)}, nil
}

// wait waits at most retire for a block. It ignores the error of a link that went down or was
// deleted, because the frames that the link carried are still in the ring.
func (r *ring) wait() { _, _, _ = r.Wait(retire) }

// drain calls fn with each frame of all released blocks. A frame is valid only during fn.
func (r *ring) drain(fn func(frame []byte)) {
	r.Drain(func(f packetring.Frame) {
		r.judged.Add(1)
		fn(f.Data)
	})
}

// count reads the counters of the ring. complete reports whether drain has passed on every frame
// that the kernel kept.
func (r *ring) count() (complete bool, err error) {
	if r.packets, r.dropped, err = r.Counts(); err != nil {
		return false, fmt.Errorf("%s: %w", r.link, err)
	}
	return r.judged.Load() >= r.packets-r.dropped, nil
}
