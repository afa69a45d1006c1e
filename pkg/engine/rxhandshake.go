package engine

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// handshake queues a handshake message for control. It drops messages that a sender can make
// without this device's public key or an index of this device. So such messages neither fill the
// ring nor wake control.
func (r *receiver) handshake(kind uint32, b []byte, m *sock.Message, now time.Duration) {
	d := r.s.d
	size := handshakeSize(kind)
	switch {
	case size == 0:
		d.drops.add(unknownType, 1)
	case size != len(b):
		d.drops.add(wrongSize, 1)
	case kind == noise.TypeCookie && !d.awaits(noise.CookieReceiver((*[noise.CookieSize]byte)(b))):
		d.drops.add(badCookie, 1)
	case kind != noise.TypeCookie && !r.filter.Passes(b):
		d.drops.add(badMAC1, 1)
	case !d.ring.put(b, &m.From, now):
		d.drops.add(handshakeQueueFull, 1)
	default:
		d.wakeControl()
	}
}

// awaits reports whether an index belongs to a session or an initiation of this device. The caller
// holds state.
func (d *Device) awaits(index uint32) bool {
	return d.state.sessions[index] != nil || d.waiting.get(index) != nil
}

// handshakeSize returns the size of handshake messages of a type, or 0 if kind is not such a type.
func handshakeSize(kind uint32) int {
	switch kind {
	case noise.TypeInitiation:
		return noise.InitiationSize
	case noise.TypeResponse:
		return noise.ResponseSize
	case noise.TypeCookie:
		return noise.CookieSize
	}
	return 0
}
