package tunnel

import (
	"slices"
	"time"
)

// Contact describes whether a peer answers. The age of the last handshake does not show it, because
// WireGuard without keepalives sends nothing while there is no traffic.
type Contact string

// Values of Contact.
const (
	// ContactUp means that an authentic message arrived within SessionLifetime.
	ContactUp Contact = "up"
	// ContactIdle means that no sent packet awaits an answer, and that nothing arrived within
	// SessionLifetime. The next packet begins with a handshake.
	ContactIdle Contact = "idle"
	// ContactSilent means that a packet was sent, and that no authentic message arrived for
	// SilentAfter.
	ContactSilent Contact = "silent"
)

// SilentAfter is longer than the time in which a working peer answers: it answers data at once, or
// with a keepalive after 10 s (WireGuard whitepaper, section 6.5, Keepalive-Timeout and
// Rekey-Timeout).
const SilentAfter = 15 * time.Second

// Sizes of messages inside UDP, bytes. A keepalive needs no answer. It is the only transport
// message of this size; larger ones grow by 16.
const (
	keepaliveSize = 32
	// keepalivesAtOnce bounds the empty packets that are sent between two observations: keepalives,
	// and packets that confirm a handshake.
	keepalivesAtOnce = 8
)

// contact holds what the counters show about one peer. The kernel and veil-wg count only authentic
// messages as received.
type contact struct {
	received, sent int64
	// heard is the time at which received last grew, or of the last handshake if that is later.
	// Zero means never.
	heard time.Time
	// unanswered is the time at which sent first grew after heard. Zero means that it did not grow.
	unanswered time.Time
}

// observe updates c with counters that were read at now. known reports whether c holds an earlier
// reading.
func (c *contact) observe(p PeerState, known bool, now time.Time) {
	sent := p.Sent - c.sent
	switch {
	case !known || p.Received < c.received || p.Sent < c.sent:
		// The device is new, or this process has not read it before. Earlier packets do not count.
		*c = contact{}
	case p.Received > c.received:
		c.heard, c.unanswered = now, time.Time{}
	case sent > 0 && !onlyKeepalives(sent) && c.unanswered.IsZero():
		c.unanswered = now
	}
	c.received, c.sent = p.Received, p.Sent
	if p.LastHandshake.After(c.heard) {
		c.heard = p.LastHandshake
	}
}

// onlyKeepalives reports whether a number of sent bytes may consist of keepalives only. It is also
// true for some small data packets. If these stay unanswered, WireGuard begins a handshake, whose
// size is different.
func onlyKeepalives(sent int64) bool {
	return sent <= keepalivesAtOnce*keepaliveSize && sent%keepaliveSize == 0
}

// at returns the peer's Contact at now.
func (c *contact) at(now time.Time) Contact {
	switch {
	case !c.unanswered.IsZero() && now.Sub(c.unanswered) >= SilentAfter:
		return ContactSilent
	case !c.heard.IsZero() && now.Sub(c.heard) < SessionLifetime:
		return ContactUp
	}
	return ContactIdle
}

// observeLocked updates all contacts and writes them into st.
func (m *Manager) observeLocked(st LiveState) {
	now := m.now()
	next := make(map[peerID]*contact, len(m.contacts))
	for _, d := range st.Devices {
		for i := range d.Peers {
			p := &d.Peers[i]
			id := peerID{d.Name, p.PublicKey}
			c, known := m.contacts[id]
			if !known {
				c = &contact{}
			}
			c.observe(*p, known, now)
			p.Contact, p.Heard, p.Unanswered = c.at(now), c.heard, c.unanswered
			next[id] = c
		}

		if !d.Served {
			// The peers could not be read, so their contacts stay as they are.
			for id, c := range m.contacts {
				if id.device == d.Name {
					next[id] = c
				}
			}
		}
	}

	m.contacts = next
	sent := make(map[peerName]Sent, len(next))
	for _, d := range st.Devices {
		for _, p := range d.Peers {
			sent[peerName{d.Name, p.Name}] = Sent{Bytes: p.Sent, At: now, Contact: p.Contact,
				Kind: d.Kind, Unanswered: p.Unanswered, Heard: p.Heard}
		}
	}

	m.sent.Store(&sent)
}

type peerName struct{ device, name string }

// Sent describes how much was sent to a peer, and whether it answers, as of At.
type Sent struct {
	Bytes   int64
	At      time.Time
	Contact Contact
	// Unanswered is when the first unanswered packet left; zero if all were answered.
	Unanswered time.Time
	// Heard is when an authentic packet was last noticed; zero means never.
	Heard time.Time
	// Kind is the kind of the device.
	Kind Kind
}

// SentTo returns the data about a peer from the last reading of the devices, by Status, Watch or
// Sync. It does not block. ok is false if the last reading did not include the peer.
func (m *Manager) SentTo(device, name string) (s Sent, ok bool) {
	all := m.sent.Load()
	if all == nil {
		return s, false
	}
	s, ok = (*all)[peerName{device, name}]
	return s, ok
}

// SilentFor returns the names of peers that have not answered for least, as of the last reading,
// sorted and without duplicates.
func (m *Manager) SilentFor(least time.Duration) []string {
	all := m.sent.Load()
	if all == nil {
		return nil
	}
	now := m.now()
	var out []string
	for p, s := range *all {
		if !s.Unanswered.IsZero() && now.Sub(s.Unanswered) >= least {
			out = append(out, p.name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
