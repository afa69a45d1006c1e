package pathmtu

import "time"

// Traffic describes the traffic to a peer.
type Traffic struct {
	// Sent counts the bytes to the peer, as they were read at At.
	Sent int64
	At   time.Time
	// Silent reports whether the peer does not answer. A silent peer is probed regardless of Sent,
	// because there may be no other traffic to it. All silent peers share knockPause.
	Silent bool
	// Segments reports whether the device may send segmented datagrams to the peer.
	Segments bool
}

const (
	// enough is the number of bytes sent to a peer that justify another probe. The answers to the
	// peer's own probes, a handshake included, are a tenth of it.
	enough = 4096
	// settle is the time after a probe during which sent bytes count as the probe's bytes. Sent
	// must include its packets, and the keepalive with which WireGuard answers after 10 s.
	settle = 12 * time.Second
)

// demand decides whether a peer is probed. It is, if enough bytes other than probes have been sent
// to it since the last probe.
type demand struct {
	// base is the number of bytes that were sent by the end of the last probe. While pending, it is
	// not known yet.
	base    int64
	ended   time.Time
	pending bool
}

// probed records that a probe has ended.
func (d *demand) probed(now time.Time) { d.ended, d.pending = now, true }

// due reports whether the peer is to be probed.
func (d *demand) due(t Traffic) bool {
	if t.Sent < d.base {
		d.base = 0 // the device was made again
	}
	if d.pending {
		if t.At.Sub(d.ended) < settle {
			return false
		}
		d.base, d.pending = t.Sent, false
	}
	return t.Sent-d.base >= enough
}
