package engine

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// A peer accepts an initiation only if its timestamp is later than all earlier timestamps. If the
// clock was ahead, and is right when the process restarts, peers would refuse the node's
// initiations. So the owner of the device keeps the latest timestamp, one for all peers, across
// restarts.

// LastStamp returns the latest timestamp of any initiation, or the argument of StampsAfter if that
// is later.
func (d *Device) LastStamp() noise.Timestamp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return later(d.mu.lastStamp, d.mu.stampsAfter)
}

// StampsAfter makes the timestamps of all following initiations later than t.
func (d *Device) StampsAfter(t noise.Timestamp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.stampsAfter = later(d.mu.stampsAfter, t)
}

// stamp returns the timestamp of the next initiation to a peer. It is later than the last one to
// this peer, but not than those to other peers. Otherwise the timestamps of a thousand peers would
// run ahead of the clock.
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
