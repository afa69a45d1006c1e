package engine

import (
	"bytes"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// Offloads are the offloads that a device uses. The device does not use an offload that the kernel
// lacks or has refused.
type Offloads struct {
	// Segment reports whether the kernel segments sent datagrams (UDP_SEGMENT). Receive reports
	// whether it aggregates received datagrams (UDP_GRO). Both are false while the device is down.
	Segment, Receive bool
	// TCP and UDP report whether the TUN accepts superpackets of the protocol.
	TCP, UDP bool
	// Singly are the peers to which datagrams are sent one by one, because of SendSingly or because
	// the kernel refused segmented datagrams.
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

// An offload that failed is tried again after a while, because the cause may be gone, such as a
// link or a driver without the offload.
const (
	// singlyFor is the duration of SendSingly.
	singlyFor = time.Hour
	// refusedFor is the time for which an offload stays off after the kernel refused it.
	refusedFor = 10 * time.Minute
)

// refusal records that the TUN refused superpackets of a protocol. A thread sets off. Control logs
// it, sets until, and clears both at that time.
type refusal struct {
	off   atomic.Bool
	until time.Duration
}

// retryOffloads logs the offloads that threads switched off, and switches them on again after
// refusedFor.
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

// retrySegments is retryOffloads for segmented datagrams to a peer.
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

// SendSingly makes the device send datagrams to a peer one by one for an hour. Call it if the path
// to the peer loses segmented datagrams. It returns fs.ErrNotExist if there is no such peer.
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
