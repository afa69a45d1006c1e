package leak

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/packetring"
)

// Size of a ring: 48 MiB for bursts and 4 s of slow traffic that the reader, which shares its CPU
// with what it watches, cannot follow at once.
const (
	ringBlocks = 192
	retire     = 20 * time.Millisecond
)

// ring reads one link.
type ring struct {
	link string
	*packetring.Ring

	judged           atomic.Uint64 // frames that were handed out
	packets, dropped uint64        // as counted by the kernel and by the reader
	told             uint64        // the part of dropped that lost has returned
	takes            chan chan<- error
}

// openRing opens a ring of some blocks on a link of the calling thread's network namespace; from
// its return every frame of the link is in it.
func openRing(link string, blocks int) (*ring, error) {
	r, err := packetring.Open(packetring.RingConfig{Link: link, Blocks: blocks, Retire: retire})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", link, err)
	}
	return &ring{link: link, Ring: r, takes: make(chan chan<- error)}, nil
}

// wait waits for a block for a short time. It ignores the error when the link went down or away:
// the frames that the link carried are in the ring.
func (r *ring) wait() { _, _, _ = r.Wait(retire) }

// drain hands each frame of all full blocks to fn. The frame is valid during fn only.
func (r *ring) drain(fn func(frame []byte)) {
	r.Drain(func(f packetring.Frame) {
		r.judged.Add(1)
		fn(f.Data)
	})
}

// count adds the kernel's counts since the last call; it reports whether every frame that the
// kernel kept was handed out.
func (r *ring) count() (complete bool, err error) {
	if r.packets, r.dropped, err = r.Counts(); err != nil {
		return false, fmt.Errorf("%s: %w", r.link, err)
	}
	return r.judged.Load() >= r.packets-r.dropped, nil
}
