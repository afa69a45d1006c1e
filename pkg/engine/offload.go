package engine

import (
	"bytes"
	"io/fs"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// Offloads are those that a device uses. One that is missing was never there, or the kernel broke
// it.
type Offloads struct {
	// Segment reports whether the kernel segments datagrams that are sent (UDP_SEGMENT), Receive
	// whether it aggregates those that come (UDP_GRO). Both are false while the device is down.
	Segment, Receive bool
	// TCP and UDP report whether the TUN takes superpackets of a protocol.
	TCP, UDP bool
	// Singly are the peers to which datagrams are sent one by one, by SendSingly.
	Singly []noise.PublicKey
}

// Offloads returns the offloads in use.
func (d *Device) Offloads() Offloads {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := Offloads{TCP: !d.noTCP.Load(), UDP: d.udpOffload && !d.noUDP.Load()}
	if b := d.bound; b != nil {
		o.Segment, o.Receive = b.v4.Offloads()
		if b.v6 != nil {
			segment, receive := b.v6.Offloads()
			o.Segment, o.Receive = o.Segment && segment, o.Receive && receive
		}
	}
	for _, p := range d.order {
		if p.singly.Load() {
			o.Singly = append(o.Singly, p.public)
		}
	}
	slices.SortFunc(o.Singly, func(a, b noise.PublicKey) int { return bytes.Compare(a[:], b[:]) })
	return o
}

// SendSingly makes the device send datagrams to a peer one by one, for as long as it has the peer:
// something on the way loses segmented ones. It returns fs.ErrNotExist if there is no such peer.
func (d *Device) SendSingly(peer noise.PublicKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[peer]
	if p == nil {
		return fs.ErrNotExist
	}
	if !p.singly.Swap(true) {
		d.log.Warn("segmented datagrams to a peer are lost: they are sent singly from now on",
			"peer", noise.PublicKey(peer))
	}
	return nil
}
