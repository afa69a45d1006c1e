package tunnel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

const (
	// partialAlways is the number of changed peers up to which Sync always compares only these.
	// Above it, it does so for up to one in partialShare of all peers.
	partialAlways = 64
	partialShare  = 8
)

// owned is a LiveState that a Manager changes in place, because nothing else refers to it.
type owned struct {
	state *LiveState
	// device is the place of the only device of the Spec in state, and peers the places of its
	// peers.
	device int
	peers  map[wgkey.Public]int
	// owners holds the keys of the peers in the Spec, by allowed IP.
	owners map[netip.Prefix]wgkey.Public
}

// syncPart is Sync for a Spec that differs from the last one in few peers of one device. It
// compares and remembers only these. done is false if everything must be compared: also if the
// Spec may be invalid.
func (m *Manager) syncPart(ctx context.Context, want Spec) (c Changes, done bool, err error) {
	m.mu.Lock()
	have, last, settled := m.have, m.want, m.settled
	m.mu.Unlock()
	if have == nil || last == nil || !settled || !want.differsInPeers(*last) {
		return Changes{}, false, nil
	}
	d := want.Devices[0]
	gone, fresh, ok := changedPeers(last.Devices[0].Peers, d.Peers)
	if !ok {
		return Changes{}, false, nil
	}
	if !m.own(have, last.Devices[0]) || !m.fits(gone, fresh) {
		return Changes{}, false, nil
	}

	part := want
	d.Peers = fresh
	part.Devices = []Device{d}
	before := m.owned.part(gone)
	c = Diff(part, before, time.Time{})
	for _, dc := range c.Configure {
		if err := m.sys.Configure(ctx, dc); err != nil {
			m.remember(want, *have, c, false)
			return c, true, fmt.Errorf("configure tunnel device %s: %w", dc.Name, err)
		}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	m.owned.replace(gone, before.after(part, c).Devices[0].Peers)
	for _, p := range gone {
		delete(m.claims, peerID{d.Name, p.PublicKey})
		delete(m.nameFor, p.PublicKey)
	}
	for _, p := range fresh {
		m.claims[peerID{d.Name, p.PublicKey}] = p.Endpoint
		m.nameFor[p.PublicKey] = p.Name
	}
	m.have, m.want, m.settled = m.owned.state, &want, true
	return c, true, nil
}

// differsInPeers reports whether s and last have one device, and are the same except for its peers.
func (s Spec) differsInPeers(last Spec) bool {
	if !s.Prune || !last.Prune || s.Underlay != last.Underlay ||
		len(s.Devices) != 1 || len(last.Devices) != 1 {
		return false
	}
	d, e := s.Devices[0], last.Devices[0]
	return d.Name == e.Name && d.Epoch == e.Epoch && d.Lane == e.Lane &&
		d.ListenPort == e.ListenPort && d.Mark == e.Mark && d.MTU == e.MTU &&
		d.PrivateKey.Equal(e.PrivateKey)
}

// changedPeers compares two lists of peers. gone are the peers of was that have no equal peer in
// is, and fresh those of is that have none in was. If the lists are not sorted by name, more peers
// may be in both. ok is false if these are too many.
func changedPeers(was, is []Peer) (gone, fresh []Peer, ok bool) {
	limit := max(partialAlways, len(is)/partialShare)
	if shared(was, is) {
		return nil, nil, true
	}
	for i, j := 0, 0; i < len(was) || j < len(is); {
		if len(gone)+len(fresh) > 2*limit {
			return nil, nil, false
		}
		switch {
		case i < len(was) && j < len(is) && was[i].Name == is[j].Name:
			if !was[i].equal(&is[j]) {
				gone, fresh = append(gone, was[i]), append(fresh, is[j])
			}
			i, j = i+1, j+1
		case j == len(is) || i < len(was) && was[i].Name < is[j].Name:
			gone = append(gone, was[i])
			i++
		default:
			fresh = append(fresh, is[j])
			j++
		}
	}
	return gone, fresh, true
}

// equal reports whether p and q are the same, with their lists in the same order.
func (p *Peer) equal(q *Peer) bool {
	return p.PublicKey == q.PublicKey && p.Endpoint == q.Endpoint && p.Keepalive == q.Keepalive &&
		p.Name == q.Name && (p.Sources == nil) == (q.Sources == nil) &&
		(shared(p.Sources, q.Sources) || slices.Equal(p.Sources, q.Sources)) &&
		(shared(p.AllowedIPs, q.AllowedIPs) || slices.Equal(p.AllowedIPs, q.AllowedIPs))
}

// shared reports whether a and b are the same slice, with the same memory.
func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// own makes m.owned the state have, in which device d matches the Spec. It returns false if have
// lacks the device or a peer.
func (m *Manager) own(have *LiveState, d Device) bool {
	if m.owned != nil && m.owned.state == have {
		return true
	}
	m.owned = nil
	i := slices.IndexFunc(have.Devices, func(s DeviceState) bool { return s.Name == d.Name })
	if i < 0 || len(have.Devices[i].Peers) != len(d.Peers) {
		return false
	}

	o := &owned{state: &LiveState{Devices: slices.Clone(have.Devices)}, device: i,
		peers:  make(map[wgkey.Public]int, len(d.Peers)),
		owners: make(map[netip.Prefix]wgkey.Public, 3*len(d.Peers))}
	peers := slices.Clone(have.Devices[i].Peers)
	o.state.Devices[i].Peers = peers
	for at, p := range peers {
		o.peers[p.PublicKey] = at
	}

	for _, p := range d.Peers {
		if _, has := o.peers[p.PublicKey]; !has {
			return false
		}
		for _, ip := range p.AllowedIPs {
			o.owners[ip] = p.PublicKey
		}
	}
	m.owned = o
	return true
}

// fits reports whether the Spec stays valid if fresh replace gone: a key and an allowed IP belong
// to one peer.
func (m *Manager) fits(gone, fresh []Peer) bool {
	leaves := make(map[wgkey.Public]bool, len(gone))
	for _, p := range gone {
		leaves[p.PublicKey] = true
	}
	own := m.owned.state.Devices[m.owned.device].PublicKey
	keys, ips := map[wgkey.Public]bool{}, map[netip.Prefix]bool{}
	for _, p := range fresh {
		_, has := m.owned.peers[p.PublicKey]
		if p.PublicKey == own || keys[p.PublicKey] || has && !leaves[p.PublicKey] {
			return false
		}
		keys[p.PublicKey] = true
		for _, ip := range p.AllowedIPs {
			owner, has := m.owned.owners[ip]
			if !ip.IsValid() || ip != ip.Masked() || ips[ip] || has && !leaves[owner] {
				return false
			}
			ips[ip] = true
		}
	}
	return true
}

// part returns a state with the device, and of its peers only these.
func (o *owned) part(peers []Peer) LiveState {
	d := o.state.Devices[o.device]
	all := d.Peers
	d.Peers = make([]PeerState, 0, len(peers))
	for _, p := range peers {
		d.Peers = append(d.Peers, all[o.peers[p.PublicKey]])
	}
	return LiveState{Devices: []DeviceState{d}}
}

// replace replaces the peers gone by fresh.
func (o *owned) replace(gone []Peer, fresh []PeerState) {
	peers := o.state.Devices[o.device].Peers
	for _, p := range gone {
		for _, ip := range p.AllowedIPs {
			delete(o.owners, ip)
		}
		at, last := o.peers[p.PublicKey], len(peers)-1
		delete(o.peers, p.PublicKey)
		if at != last {
			peers[at] = peers[last]
			o.peers[peers[at].PublicKey] = at
		}
		peers[last] = PeerState{}
		peers = peers[:last]
	}
	for _, p := range fresh {
		o.peers[p.PublicKey] = len(peers)
		peers = append(peers, p)
		for _, ip := range p.AllowedIPs {
			o.owners[ip] = p.PublicKey
		}
	}
	o.state.Devices[o.device].Peers = peers
}
