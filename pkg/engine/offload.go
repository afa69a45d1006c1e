package engine

import (
	"bytes"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// Offloads are the offloads that a device uses. A missing one never existed, or the kernel broke
// it.
type Offloads struct {
	// Segment reports whether the kernel segments datagrams that are sent (UDP_SEGMENT), Receive
	// whether it aggregates those that come (UDP_GRO). Both are false while the device is down.
	Segment, Receive bool
	// TCP and UDP report whether the TUN takes superpackets of a protocol.
	TCP, UDP bool
	// Singly are the peers to which datagrams are sent one by one: by SendSingly, or because the
	// kernel refused segmented ones.
	Singly []noise.PublicKey
}

// Offloads returns the offloads in use.
func (d *Device) Offloads() Offloads {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := Offloads{TCP: !d.noTCP.off.Load(), UDP: d.udpOffload && !d.noUDP.off.Load()}
	if b := d.state.bound; b != nil {
		o.Segment, o.Receive = b.v4.Offloads()
		if b.v6 != nil {
			segment, receive := b.v6.Offloads()
			o.Segment, o.Receive = o.Segment && segment, o.Receive && receive
		}
	}
	for _, p := range d.mu.order {
		if p.singly.Load() {
			o.Singly = append(o.Singly, p.public)
		}
	}
	slices.SortFunc(o.Singly, func(a, b noise.PublicKey) int { return bytes.Compare(a[:], b[:]) })
	return o
}

// An offload that failed is tried again after a while: the cause may be a link that went, or a
// driver that was replaced.
const (
	// singlyFor is the duration of SendSingly.
	singlyFor = time.Hour
	// refusedFor is for how long an offload stays off that the kernel refused.
	refusedFor = 10 * time.Minute
)

// refusal reports whether the TUN refused superpackets of a protocol. A thread sets off; control
// logs it, and clears it at a time.
type refusal struct {
	off   atomic.Bool
	until time.Duration
}

// retryOffloads logs which offloads threads switched off, and switches on again the offloads that
// were off for long enough.
func (d *Device) retryOffloads(now time.Duration) {
	for _, r := range []struct {
		*refusal
		name string
	}{{&d.noTCP, "TCP"}, {&d.noUDP, "UDP"}} {
		switch {
		case !r.off.Load():
		case r.until == 0:
			r.until = now + refusedFor
			d.log.Warn("the TUN refuses superpackets: packets are written one by one for a while",
				"protocol", r.name, "for", refusedFor)
		case now >= r.until:
			r.until = 0
			r.off.Store(false)
			d.log.Info("superpackets are written again", "protocol", r.name)
		}
	}
}

// retrySegments does the same for segmented datagrams to a peer.
func (d *Device) retrySegments(p *peer, now time.Duration) {
	switch {
	case !p.singly.Load():
	case p.singlyUntil == 0:
		p.singlyUntil = now + refusedFor
		d.log.Warn("the kernel refuses segmented datagrams to a peer: they are sent singly for a while",
			"peer", p.public, "for", refusedFor)
	case now >= p.singlyUntil:
		p.singlyUntil = 0
		p.singly.Store(false)
		d.log.Info("segmented datagrams are sent to a peer again", "peer", p.public)
	}
}

// SendSingly makes the device send datagrams to a peer one by one, for an hour: something on the way
// loses segmented ones. It returns fs.ErrNotExist if there is no such peer.
func (d *Device) SendSingly(peer noise.PublicKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.mu.peers[peer]
	if p == nil {
		return fs.ErrNotExist
	}
	p.singlyUntil = d.now() + singlyFor
	if !p.singly.Swap(true) {
		d.log.Warn("segmented datagrams to a peer are lost: they are sent singly for a while",
			"peer", noise.PublicKey(peer), "for", singlyFor)
	}
	return nil
}
