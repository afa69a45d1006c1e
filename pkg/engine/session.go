package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// session is a pair of keys with a peer.
type session struct {
	peer          *peer
	keys          *noise.Keys
	local, remote uint32
	initiator     bool
	born          time.Duration
	// used reports that a packet came under these keys.
	used atomic.Bool
	// sent is the next counter.
	sent atomic.Uint64
	// crossed reports whether the peer began this session possibly without knowledge of ours.
	crossed bool
	// rival is the index of the session to which this session gave way, see proof; 0 means none.
	// declined is the time, in ns since boot, or 0 once the peer was seen to prefer this session.
	rival    uint32
	declined atomic.Int64

	mu     sync.Mutex // taken once a batch
	window window
}

// expired reports whether a session is too old to send or receive under it.
func (s *session) expired(now time.Duration) bool { return now-s.born >= rejectAfterTime }

// exhausted reports whether a session has no counter left. A batch has at most maxBatch packets, so
// threads that pass the check together stay below the protocol's limit.
func (s *session) exhausted() bool { return s.sent.Load() >= rejectAfterMessages-64*maxBatch }

// take reserves n counters and returns the first; ok is false when the session has no more.
func (s *session) take(n int) (first uint64, ok bool) {
	if s.exhausted() {
		return 0, false
	}
	return s.sent.Add(uint64(n)) - uint64(n), true
}

// maxFormer bounds the sessions of a peer that only receive.
const maxFormer = 6

// sessions are the sessions of a peer. Packets are sent under current. next waits for the peer's
// first packet under it. Each of former was one of both: packets under them may be on their way for
// as long as they may be used. Where both sides' handshakes cross there are more sessions than the
// one of the protocol. While the device runs, only step changes them.
type sessions struct {
	current, next *session
	former        [maxFormer]*session
}

// sessionState is what can be sent to a peer. It follows from its sessions.
type sessionState uint8

const (
	noSession sessionState = iota // nothing
	unproven                      // nothing until next is proven
	sending                       // packets under current
	renewing                      // packets under current until next is proven
	sessionStates
)

func (s *sessions) state() sessionState {
	switch {
	case s.current == nil && s.next == nil:
		return noSession
	case s.current == nil:
		return unproven
	case s.next == nil:
		return sending
	}
	return renewing
}

// sessionEvent is what changes a peer's sessions.
type sessionEvent uint8

const (
	noEvent   sessionEvent = iota
	accepted               // the peer's initiation was answered; a fresh session is unproven
	answered               // the peer's response came; a fresh session is proven
	proven                 // the first packet came under next: the peer has its keys
	declined               // the same, but current is kept, see proof
	preferred              // the peer still sends under a session that was declined, see proof
	aged                   // some of former have expired
	over                   // 540 s without a fresh session, a new key, the link down, no peer
	sessionEvents
)

// move is a set of bits, what an event does. step makes those up to endAll, in this order, and
// control does the rest.
type move uint16

const (
	shelveCurrent move = 1 << iota // it only receives from now on
	shelveNext
	useNext
	useFresh
	awaitFresh // it becomes next
	useDeclined
	endAged
	endAll
	armZero // keys are zeroed after 540 s
	finish  // the handshake is complete: packets that wait are sent
	prove   // an empty packet is sent if none waits: the peer waits for it
)

// transitions is what each event does in each state. An event that a state does not list does
// nothing. These states follow:
//
//	           accepted  answered  proven   declined  preferred  over
//	noSession  unproven  sending   –        –         –          noSession
//	unproven   unproven  sending   sending  –         –          noSession
//	sending    renewing  sending   –        –         sending    noSession
//	renewing   renewing  sending   sending  sending   renewing   noSession
var transitions = [sessionStates][sessionEvents]move{
	noSession: {
		accepted: awaitFresh | armZero,
		answered: useFresh | armZero | finish | prove,
		aged:     endAged,
		over:     endAll,
	},
	unproven: {
		accepted: shelveNext | awaitFresh | armZero,
		answered: shelveNext | useFresh | armZero | finish | prove,
		proven:   useNext | finish,
		aged:     endAged,
		over:     endAll,
	},
	sending: {
		accepted:  awaitFresh | armZero,
		answered:  shelveCurrent | useFresh | armZero | finish | prove,
		preferred: useDeclined,
		aged:      endAged,
		over:      endAll,
	},
	renewing: {
		accepted:  shelveNext | awaitFresh | armZero,
		answered:  shelveCurrent | shelveNext | useFresh | armZero | finish | prove,
		proven:    shelveCurrent | useNext | finish,
		declined:  shelveNext | finish,
		preferred: useDeclined,
		aged:      endAged,
		over:      endAll,
	},
}

// step returns the sessions after an event, those that ended appended to ended, and the moves of
// the event. It is pure. fresh is the session of a handshake.
func (s sessions) step(e sessionEvent, fresh *session, now time.Duration,
	ended []*session) (sessions, []*session, move) {
	m := transitions[s.state()][e]
	end := func(at **session) {
		if *at != nil {
			ended = append(ended, *at)
			*at = nil
		}
	}
	shelve := func(at **session) {
		end(&s.former[0]) // the oldest
		copy(s.former[:], s.former[1:])
		s.former[maxFormer-1], *at = *at, nil
	}

	if m&shelveCurrent != 0 {
		shelve(&s.current)
	}
	if m&shelveNext != 0 {
		shelve(&s.next)
	}
	if m&useNext != 0 {
		s.current, s.next = s.next, nil
	}
	if m&useFresh != 0 {
		s.current = fresh
	}
	if m&awaitFresh != 0 {
		s.next = fresh
	}

	for i := range s.former {
		f := s.former[i]
		switch {
		case f == nil:
		case m&endAged != 0 && f.expired(now):
			end(&s.former[i])
		case m&useDeclined != 0 && f.rival == s.current.local && f.declined.Load() == 0:
			s.former[i], s.current = s.current, f
			return s, ended, m
		}
	}
	if m&endAll != 0 {
		for _, at := range s.all() {
			end(at)
		}
	}
	return s, ended, m
}

// all returns the places of the sessions.
func (s *sessions) all() (out [2 + maxFormer]**session) {
	out[0], out[1] = &s.current, &s.next
	for i := range s.former {
		out[2+i] = &s.former[i]
	}
	return out
}

// hasAged reports whether some of former have expired.
func (s *sessions) hasAged(now time.Duration) bool {
	return slices.ContainsFunc(s.former[:],
		func(f *session) bool { return f != nil && f.expired(now) })
}

const (
	// crossing is the time between two sessions that both sides began at once.
	crossing = rekeyTimeout
	// patience is the time for which a peer may send under a session that gave way.
	patience = 400 * time.Millisecond
)

// proof returns the event of the first packet under next; greater reports whether our public key is
// the greater one. Where the handshakes of both sides crossed there are two sessions; then the one
// whose initiator has the greater key is kept. Else each side might send under the other's session,
// and neither would renew its own. They did not cross if the peer had used ours before it began its
// own. The handshake of a process that restarted may look crossed: such a peer does not have our
// session, and prefers the declined one.
func (s *sessions) proof(greater bool) sessionEvent {
	c, n := s.current, s.next
	switch {
	case n == nil || !n.used.Load():
		return noEvent
	case c != nil && n.crossed && n.born-c.born < crossing && greater:
		return declined
	}
	return proven
}

// changeSessions applies an event to the sessions of a peer. The caller holds mu.
func (d *Device) changeSessions(p *peer, e sessionEvent, fresh *session, now time.Duration) {
	if transitions[p.sessions.state()][e] == 0 {
		return
	}
	d.state.Lock()
	m := d.changeSessionsLocked(p, e, fresh, now)
	d.state.Unlock()
	d.zeroRetired()

	if m&armZero != 0 {
		p.timers.derived(now)
	}
	if m&finish != 0 {
		d.complete(p, m&prove != 0, now)
	}
}

// changeSessionsLocked does the part of changeSessions that the threads see, and returns the moves.
// The caller holds state for writing, and calls zeroRetired after it has released it.
func (d *Device) changeSessionsLocked(p *peer, e sessionEvent, fresh *session,
	now time.Duration) (m move) {
	kept := len(d.mu.retired)
	p.sessions, d.mu.retired, m = p.sessions.step(e, fresh, now, d.mu.retired)
	for _, s := range d.mu.retired[kept:] {
		delete(d.state.sessions, s.local)
	}
	if fresh != nil {
		d.state.sessions[fresh.local] = fresh
	}
	return m
}

// zeroRetired zeroes the keys of sessions that no thread can reach.
func (d *Device) zeroRetired() {
	for i, s := range d.mu.retired {
		secret.Free(d.arena, s.keys)
		s.keys = nil
		d.mu.retired[i] = nil
	}
	d.mu.retired = d.mu.retired[:0]
}
