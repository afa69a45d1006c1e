package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// session is a pair of keys shared with a peer.
type session struct {
	peer          *peer
	keys          *noise.Keys
	local, remote uint32
	initiator     bool
	born          time.Duration
	// used reports whether a packet came under these keys.
	used atomic.Bool
	// sent is the next counter.
	sent atomic.Uint64
	// crossed reports whether the peer may have begun this session before it knew current, which
	// this side began.
	crossed bool
	// rival is the index of the session that was kept when this session was declined, see proof; 0
	// means none. declined is the time of that, in ns since boot. It is set to 0 when the peer
	// still sends under this session after patience.
	rival    uint32
	declined atomic.Int64

	mu     sync.Mutex // taken once per batch
	window window
}

// expired reports whether a session is too old to send or receive packets.
func (s *session) expired(now time.Duration) bool { return now-s.born >= rejectAfterTime }

// exhausted reports whether a session has no counters left. The check leaves a margin of 64
// batches, so threads that pass it at the same time stay below the protocol's limit.
func (s *session) exhausted() bool { return s.sent.Load() >= rejectAfterMessages-64*maxBatch }

// take reserves n counters and returns the first. ok is false if the session is exhausted.
func (s *session) take(n int) (first uint64, ok bool) {
	if s.exhausted() {
		return 0, false
	}
	return s.sent.Add(uint64(n)) - uint64(n), true
}

// maxFormer bounds the sessions of a peer that are only for receiving.
const maxFormer = 6

// sessions are the sessions of a peer. Packets are sent under current. next was begun by the peer,
// and is not used for sending before the first packet under it comes. former are earlier sessions
// that were current or next. They still receive until they expire, because packets under them may
// be under way. There are several, because each crossing of both sides' handshakes adds a session.
// While the device runs, only step changes sessions.
type sessions struct {
	current, next *session
	former        [maxFormer]*session
}

// sessionState names the session that can send to a peer. It is computed from sessions.
type sessionState uint8

const (
	noSession sessionState = iota // none
	unproven                      // none until next is proven
	sending                       // current
	renewing                      // current until next is proven
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

// sessionEvent is an event that changes the sessions of a peer.
type sessionEvent uint8

const (
	noEvent   sessionEvent = iota
	accepted               // the peer's initiation was answered; a fresh session is unproven
	answered               // the peer's response came; a fresh session is proven
	proven                 // the first packet under next came, so the peer has its keys
	declined               // the first packet under next came, but current is kept, see proof
	preferred              // the peer still sends under a session that was declined, see proof
	aged                   // some of former have expired
	over                   // 540 s without a fresh session, new key, link down, or peer removed
	sessionEvents
)

// move is a set of bits: the effects of an event. step applies the effects up to endAll, in this
// order. changeSessions applies the rest.
type move uint16

const (
	shelveCurrent move = 1 << iota // current moves to former, so it only receives
	shelveNext                     // next moves to former
	useNext                        // next becomes current
	useFresh                       // fresh becomes current
	awaitFresh                     // fresh becomes next
	useDeclined                    // the declined session of former and current change places
	endAged                        // expired sessions of former end
	endAll                         // all sessions end
	armZero                        // the timer that zeroes keys restarts (540 s)
	finish                         // the handshake is complete, and staged packets are sent
	prove                          // without staged packets, an empty packet is sent
)

// transitions holds the effects of each event in each state. An event that a state does not list
// has no effect. The table shows the state after each event:
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

// step returns the sessions after an event, ended with the ended sessions appended, and the effects
// of the event. It is a pure function. fresh is the session of the handshake, for the events
// accepted and answered.
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

// all returns pointers to the fields that hold sessions.
func (s *sessions) all() (out [2 + maxFormer]**session) {
	out[0], out[1] = &s.current, &s.next
	for i := range s.former {
		out[2+i] = &s.former[i]
	}
	return out
}

// aging returns the time at which the first of former expires, or 0 if there are none.
func (s *sessions) aging() (first time.Duration) {
	for _, f := range s.former {
		if f != nil && (first == 0 || f.born+rejectAfterTime < first) {
			first = f.born + rejectAfterTime
		}
	}
	return first
}

const (
	// crossing is the maximum time between two sessions whose handshakes can have crossed.
	crossing = rekeyTimeout
	// patience is the time for which a peer may still send under a declined session. If it sends
	// longer, it prefers that session.
	patience = 400 * time.Millisecond
)

// proof returns the event of the first packet under next, or noEvent if there was no such packet.
// greater reports whether this side's public key is the greater one.
//
// If the handshakes of both sides cross, there are two sessions. Both sides then keep the session
// whose initiator has the greater key. Otherwise each side could send under the session that the
// other began, and neither would renew its own. Handshakes did not cross if the peer had used this
// side's session before it began its own. The handshake of a restarted peer may look crossed. That
// peer does not have this side's session, so it keeps sending under the declined one (event
// preferred).
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

// changeSessions applies an event to the sessions of a peer. fresh is nil except for accepted and
// answered. The caller holds mu.
func (d *Device) changeSessions(p *peer, e sessionEvent, fresh *session, now time.Duration) {
	if transitions[p.sessions.state()][e] == 0 {
		return
	}
	p.restsUntil = 0
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

// changeSessionsLocked does the part of changeSessions that the threads see, and returns the
// effects of the event. The caller holds state for writing. It calls zeroRetired after it has
// released state.
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

// zeroRetired zeroes the keys of ended sessions. No thread can reach these any more.
func (d *Device) zeroRetired() {
	for i, s := range d.mu.retired {
		secret.Free(d.arena, s.keys)
		s.keys = nil
		d.mu.retired[i] = nil
	}
	d.mu.retired = d.mu.retired[:0]
}
