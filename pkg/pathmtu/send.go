package pathmtu

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// maxSent is the number of probes of a search whose late answers count. A search sends some 70 at
// most, and an answer comes at most a few probes late.
const maxSent = 16

// probe sends the probe of a search that is due, or goes on.
func (p *Prober) probe(t *target, now time.Time) {
	if t.search.Idle() {
		t.sent, t.timeout = t.sent[:0], max(t.timeout/2, p.o.Timeout)
	}
	if size, ok := t.search.Probe(now); ok {
		t.probing = true
		p.send(t, size, now)
	}
}

// send sends a probe. A probe that cannot be sent counts as lost when its deadline passes.
func (p *Prober) send(t *target, size int, now time.Time) {
	t.nonce, t.deadline = newNonce(), now.Add(t.timeout)
	probe := message{kindProbe, t.nonce, size}
	if len(t.sent) == maxSent {
		t.sent = slices.Delete(t.sent, 0, 1)
	}
	t.sent = append(t.sent, probe)
	p.put(t, probe, 1)
}

func newNonce() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(binary.BigEndian.Uint64(b[:]), 1)
}

// put sends a probe. If count is more than 1, it sends count copies in one segmented datagram.
func (p *Prober) put(t *target, m message, count int) {
	s := p.sockets[socketID{t.Device, t.Addr.Is6()}]
	if s == nil {
		return
	}
	payload := m.put(max(m.size-headers(t.Addr), messageLen))
	var control []byte
	if count > 1 {
		control = segmented(len(payload))
		payload = bytes.Repeat(payload, min(count, maxSegmented/len(payload)))
	}
	if _, _, err := s.conn.WriteMsgUDPAddrPort(payload, control,
		netip.AddrPortFrom(t.Addr, p.o.Port)); err != nil {
		p.o.Log.Debug("probe not sent", "peer", t.Name, "size", m.size, "count", count, "err", err)
	}
}

// turnBurst sends the probes of t.burst that are due and returns the time until the next are due.
func (p *Prober) turnBurst(t *target, now time.Time) time.Duration {
	if t.burstNonce != 0 && !now.Before(t.burstDeadline) {
		t.burstNonce = 0
		t.burst.unanswered(now)
		t.demand.probed(now)
	}
	due, ok := t.burst.due()
	if !ok {
		return maxPause
	}
	if t.burstNonce == 0 && !now.Before(due) {
		t.burstNonce, t.burstDeadline = newNonce(), now.Add(4*t.timeout)
		p.put(t, message{kindProbe, t.burstNonce, t.search.MTU()}, t.burst.count())
	}
	if t.burstNonce != 0 {
		due = t.burstDeadline
	}
	return due.Sub(now)
}
