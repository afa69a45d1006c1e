package engine

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// A peer takes no initiation whose timestamp is not later than all before. A clock that was ahead
// once, and is right when the process starts again, would so cut the node off. What was used is
// therefore kept outside of the process, one timestamp for all peers.

// LastStamp returns a timestamp than which no initiation of the device had a later one.
func (d *Device) LastStamp() noise.Timestamp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return later(d.mu.lastStamp, d.mu.stampsAfter)
}

// StampsAfter makes the timestamps of initiations from now on later than t.
func (d *Device) StampsAfter(t noise.Timestamp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.stampsAfter = later(d.mu.stampsAfter, t)
}

// stamp returns the timestamp of the next initiation to a peer. It need not be later than those to
// other peers: else a thousand of them would run ahead of the clock.
func (d *Device) stamp(p *peer) noise.Timestamp {
	t := noise.Stamp(time.Now(), later(p.lastStamp, d.mu.stampsAfter))
	d.mu.lastStamp = later(d.mu.lastStamp, t)
	return t
}

func later(a, b noise.Timestamp) noise.Timestamp {
	if b.After(a) {
		return b
	}
	return a
}
