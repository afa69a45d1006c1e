package engine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
	"github.com/kubeveil/kubeveil/pkg/engine/uapi"
)

// IpcGetOperation writes the configuration and the counters in the format of WireGuard's
// configuration protocol.
func (d *Device) IpcGetOperation(w io.Writer) error {
	d.mu.Lock()
	if d.closing.Load() {
		d.mu.Unlock()
		return errClosed
	}
	state := uapi.DeviceState{PrivateKey: *d.mu.id.Private(), ListenPort: d.mu.port, Mark: d.mu.mark}
	for _, p := range d.mu.order {
		state.Peers = append(state.Peers, p.state())
	}
	d.mu.Unlock()
	err := state.Write(w)
	clear(state.PrivateKey[:])
	clear(state.Peers)
	return err
}

// state returns the configuration and the counters of a peer. The caller holds mu.
func (p *peer) state() uapi.PeerState {
	s := uapi.PeerState{Public: p.public, Preshared: p.secrets.Preshared,
		LastHandshake: p.lastHandshake, Keepalive: p.keepalive,
		Sent: p.sentBytes.Load(), Received: p.rxBytes.Load(),
		Allowed: slices.SortedFunc(maps.Keys(p.allowed), comparePrefix)}
	if ep := p.endpoint.Load(); ep != nil {
		s.Endpoint = uapi.Endpoint{Addr: ep.Addr, Scope: ep.Scope}
	}
	return s
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// IpcSetOperation applies a Set request of the configuration protocol. After an error the
// configuration is unchanged.
func (d *Device) IpcSetOperation(r io.Reader) error {
	set, err := uapi.Parse(r)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closing.Load() {
			return errClosed
		}
		err = d.apply(set)
	}
	if err != nil {
		// The error is safe to log: errors of Parse and apply quote no value, which could be a key.
		d.log.Warn("configuration refused, nothing changed", "err", err)
		d.NoteRefused()
	}
	return err
}

// NoteRefused counts a refused configuration request. Callers also use it for a request that they
// refused themselves.
func (d *Device) NoteRefused() { d.drops.add(configurationRefused, 1) }

// apply applies a Set completely or not at all. The caller holds mu.
func (d *Device) apply(set *uapi.Set) error {
	now := d.now()
	plan, err := d.plan(set)
	if err == nil {
		err = d.applyDevice(set)
	}

	if err != nil {
		plan.free(d.arena)
		return err
	}

	// Nothing below can fail.
	d.mu.configured++
	if set.PrivateKey != nil {
		d.setPrivate(set.PrivateKey, now)
	}

	for _, p := range plan.made {
		d.mu.id.Precompute(p.secrets, &p.public)
	}

	d.state.Lock()
	if set.ReplacePeers {
		for _, p := range slices.Clone(d.mu.order) {
			d.remove(p)
		}
	}

	for _, c := range plan.changes {
		d.applyPeer(c)
	}

	d.state.Unlock()
	d.bury()
	if d.mu.up {
		for _, c := range plan.changes {
			if p := c.peer; p != nil && !p.removed {
				d.welcome(p, now)
				if c.set.Keepalive != nil && *c.set.Keepalive != 0 {
					d.sendEmpty(p, now)
				}
			}
		}
	}

	return nil
}

// applyDevice applies the listen port and the mark. Only these two can fail once a plan exists.
func (d *Device) applyDevice(set *uapi.Set) error {
	oldPort, oldMark := d.mu.port, d.mu.mark
	if set.Mark != nil {
		d.mu.mark = *set.Mark
	}
	if set.ListenPort != nil && (*set.ListenPort != d.mu.port || d.mu.port == 0) {
		if !d.mu.up {
			d.mu.port = *set.ListenPort
		} else if err := d.bind(*set.ListenPort); err != nil {
			d.mu.port, d.mu.mark = oldPort, oldMark
			return &uapi.Error{Code: -int64(unix.EADDRINUSE),
				Err: fmt.Errorf("listen on port %d: %w", *set.ListenPort, err)}
		}
	} else if d.mu.mark != oldMark {
		if err := d.remark(d.mu.mark); err != nil {
			err = errors.Join(err, d.remark(oldMark))
			d.mu.mark = oldMark
			return &uapi.Error{Code: -int64(unix.EADDRINUSE), Err: err}
		}
		d.changes.add(sock.Change{}) // The mark may choose other routes.
	}
	return nil
}

func (d *Device) remark(mark uint32) error {
	if d.state.bound == nil {
		return nil
	}
	err := d.state.bound.v4.SetMark(mark)
	if d.state.bound.v6 != nil {
		err = errors.Join(err, d.state.bound.v6.SetMark(mark))
	}
	return err
}

// setPrivate changes the static key. It ends all sessions, greets all peers, and removes the peer
// that has the new key.
func (d *Device) setPrivate(key *uapi.Key, now time.Duration) {
	before := d.mu.id.Public
	d.mu.id.SetPrivate(key)
	clear(key[:])
	if d.mu.id.Public == before {
		return
	}
	d.state.Lock()
	d.useKey()
	for _, p := range slices.Clone(d.mu.order) {
		if p.public == d.mu.id.Public {
			d.remove(p)
			continue
		}
		d.changeSessionsLocked(p, over, nil, now)
	}
	d.state.Unlock()
	d.bury()
	for _, p := range d.mu.order {
		d.forgetInitiation(p)
		d.mu.id.Precompute(p.secrets, &p.public)
	}
	if d.mu.up {
		d.greetAll(now)
	}
}

// useKey makes the checks of MAC1 and MAC2 use the current static key. The caller holds state for
// writing, or no thread runs.
func (d *Device) useKey() {
	d.mu.checker = noise.NewChecker(d.mu.id.Public)
	for _, s := range d.shards {
		s.rx.filter = noise.NewFilter(d.mu.id.Public)
	}
}

// applyPeer applies one section of a Set; the caller holds state for writing.
func (d *Device) applyPeer(c change) {
	p, s := c.peer, c.set
	if p == nil || p.removed {
		return
	}

	if c.made {
		d.mu.peers[p.public] = p
		d.mu.order = append(d.mu.order, p)
	}

	if s.Remove {
		d.remove(p)
		return
	}

	if s.Preshared != nil {
		if p.secrets != nil {
			p.secrets.Preshared = *s.Preshared
		}
		clear(s.Preshared[:])
	}

	if s.Endpoint != nil {
		old := p.endpoint.Load()
		if old == nil || old.Addr != s.Endpoint.Addr || old.Scope != s.Endpoint.Scope {
			p.endpoint.Store(&sock.Endpoint{Addr: s.Endpoint.Addr, Scope: s.Endpoint.Scope})
			p.dead.Store(false)
		}
	}

	if s.Keepalive != nil {
		p.keepalive, p.restsUntil = *s.Keepalive, 0
	}

	for _, a := range s.Allowed {
		switch {
		case a.Clear:
			for prefix := range p.allowed {
				d.state.routes.remove(prefix, p)
			}
			clear(p.allowed)
		case a.Remove:
			d.state.routes.remove(a.Prefix, p)
			delete(p.allowed, a.Prefix)
		default:
			if from := d.state.routes.insert(a.Prefix, p); from != nil && from != p {
				delete(from.allowed, a.Prefix)
			}
			p.allowed[a.Prefix] = struct{}{}
		}
	}
}

// remove removes a peer from the device. The caller holds state for writing. It calls bury after it
// has released state.
func (d *Device) remove(p *peer) {
	if p.removed {
		return
	}
	p.removed = true
	for prefix := range p.allowed {
		d.state.routes.remove(prefix, p)
	}
	d.changeSessionsLocked(p, over, nil, 0)
	delete(d.mu.peers, p.public)
	d.mu.dead = append(d.mu.dead, p)
}

// bury zeroes the secrets of ended sessions and of removed peers, which no thread can reach any
// more.
func (d *Device) bury() {
	d.zeroRetired()
	if len(d.mu.dead) == 0 {
		return
	}
	for _, p := range d.mu.dead {
		if p.secrets == nil {
			continue // The Set that added the peer also removed it.
		}
		d.forgetInitiation(p)
		// A thread stages packets only while it holds state, and later threads do not find the
		// peer. So no packet is staged after this.
		d.unstage(p)
		secret.Free(d.arena, p.secrets)
	}
	clear(d.mu.dead)
	d.mu.dead = d.mu.dead[:0]
	d.mu.order = slices.DeleteFunc(d.mu.order, func(p *peer) bool { return p.removed })
}

// welcome greets a peer that has an endpoint and never completed a handshake. It does not repeat a
// greeting to the same address.
func (d *Device) welcome(p *peer, now time.Duration) {
	ep := p.endpoint.Load()
	if ep == nil || !p.lastHandshake.IsZero() || p.greetedAt == ep.Addr && p.timers.greetings > 0 {
		return
	}
	d.greet(p, ep, now)
}

// greetAll greets all peers with an endpoint. This device has ended its sessions, and without a
// greeting a peer that only sends would notice after 15 s.
func (d *Device) greetAll(now time.Duration) {
	for _, p := range d.mu.order {
		if ep := p.endpoint.Load(); ep != nil {
			d.greet(p, ep, now)
		}
	}
}

// greet makes the next walk send the first greeting to a peer; see timers.go.
func (d *Device) greet(p *peer, ep *sock.Endpoint, now time.Duration) {
	p.greetedAt = ep.Addr
	p.timers.greetings = 0
	p.timers.greet, p.restsUntil = now, 0
	d.mu.nextWalk = now
	d.wakeControl()
}
