package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// Times of the protocol (whitepaper, section 6.1, and drivers/net/wireguard/messages.h).
const (
	rekeyAfterTime   = 120 * time.Second
	rejectAfterTime  = 180 * time.Second
	rekeyTimeout     = 5 * time.Second
	keepaliveTimeout = 10 * time.Second
	maxAttempts      = 18 // 90 s of attempts
	maxJitter        = 334 * time.Millisecond
	// attemptTime bounds the attempts of peers that wait for budget. Others end at maxAttempts.
	attemptTime   = (maxAttempts + 1) * (rekeyTimeout + maxJitter)
	zeroAfterTime = 3 * rejectAfterTime
	// refreshOnReceive is the age of a session at which an initiator that only receives renews it.
	refreshOnReceive = rejectAfterTime - keepaliveTimeout - rekeyTimeout
	// floodInterval is the least time between two initiations of a peer.
	floodInterval = 20 * time.Millisecond
)

// Greetings. A peer may still have a session with an earlier process, whose keys are gone. It
// cannot notice that, and never would if it only receives. So the device greets a peer without a
// handshake: it sends an initiation. It repeats the greeting much earlier than after rekeyTimeout,
// because the first greetings of both sides often cross. After a handshake that began with a
// greeting, the device sends a few empty packets (confirmations), because the peer uses its old
// keys until a packet under the new keys comes.
const (
	maxGreetings     = 6
	maxConfirmations = 3
	greetPause       = 150 * time.Millisecond
)

// timers holds the times since boot of a peer's next actions; 0 means never. Its methods only
// compute which actions are due. The caller performs them.
type timers struct {
	retransmit time.Duration // next retransmission of the initiation
	attempts   int           // retransmissions so far
	until      time.Duration // end of retransmissions, from the first initiation on
	zero       time.Duration // zeroing of keys
	greet      time.Duration // next greeting
	greetings  int           // greetings so far
	confirm    time.Duration // next confirmation
	confirms   int           // confirmations so far
}

// view is the input of timers.due.
type view struct {
	now time.Duration
	// unanswered is when the first data since the last received packet was sent. owed is when the
	// first data since the last sent packet was received. traversal is the time of the last packet
	// in either direction. Zero means never.
	unanswered, owed, traversal time.Duration
	keepalive                   time.Duration
	jitter                      time.Duration
	// aging is when the first former session expires.
	aging time.Duration
}

// action is a set of bits: the actions that are due.
type action uint16

const (
	doRetry     action = 1 << iota // repeat the initiation
	doGiveUp                       // drop staged packets, after maxAttempts
	doInitiate                     // begin a handshake, because the peer stopped answering
	doKeepalive                    // send an empty packet
	doZero                         // end all sessions and zero their keys
	doGreet                        // send a greeting
	doConfirm                      // send an empty packet after a greeting's handshake
	doAge                          // end expired sessions
)

// due returns the due actions and advances the timers, except retransmit and greet, which began and
// greeted set.
func (t *timers) due(v view) action {
	var a action
	past := func(at time.Duration) bool { return at != 0 && v.now >= at }
	if past(t.retransmit) {
		if t.attempts > maxAttempts || past(t.until) {
			a |= doGiveUp
			t.retransmit, t.until = 0, 0
			if t.zero == 0 {
				t.zero = v.now + zeroAfterTime
			}
		} else {
			a |= doRetry
		}
	}

	if v.unanswered != 0 && v.now >= v.unanswered+keepaliveTimeout+rekeyTimeout+v.jitter {
		a |= doInitiate
	}
	if v.owed != 0 && v.now >= v.owed+keepaliveTimeout {
		a |= doKeepalive
	}
	if v.keepalive != 0 && v.now >= v.traversal+v.keepalive {
		a |= doKeepalive
	}

	if past(t.zero) {
		a |= doZero
		t.zero = 0
	}

	if past(t.greet) {
		a |= doGreet
	}

	if past(v.aging) {
		a |= doAge
	}

	if past(t.confirm) {
		a |= doConfirm
		t.confirms++
		t.confirm = 0
		if t.confirms < maxConfirmations {
			t.confirm = v.now + greetPause<<t.confirms
		}
	}

	return a
}

// rest returns a time before which due returns no action, also if data is sent or received from now
// on: that makes an action due keepaliveTimeout later at the earliest. A change of the timers, the
// sessions or the keepalive ends the rest.
func (t *timers) rest(v view) time.Duration {
	next := v.now + keepaliveTimeout
	for _, at := range []struct{ since, after time.Duration }{
		{t.retransmit, 0}, {t.zero, 0}, {t.greet, 0}, {t.confirm, 0}, {v.aging, 0},
		{v.owed, keepaliveTimeout},
		{v.unanswered, keepaliveTimeout + rekeyTimeout + v.jitter},
	} {
		if at.since != 0 {
			next = min(next, at.since+at.after)
		}
	}
	if v.keepalive != 0 {
		next = min(next, v.traversal+v.keepalive)
	}
	return next
}

// began records that an initiation was sent.
func (t *timers) began(now, jitter time.Duration) {
	t.retransmit = now + rekeyTimeout + jitter
	if t.until == 0 {
		t.until = now + attemptTime
	}
}

// again makes the next initiation the first of a handshake.
func (t *timers) again() { t.attempts, t.until = 0, 0 }

// greeted records that an initiation was sent as a greeting; jitter is between 0 and 1.
func (t *timers) greeted(now time.Duration, jitter float64) {
	t.greetings++
	t.greet = 0
	if t.greetings < maxGreetings {
		pause := greetPause << (t.greetings - 1)
		t.greet = now + pause/2 + time.Duration(jitter*float64(pause))
	}
}

// derived records that a session was derived.
func (t *timers) derived(now time.Duration) { t.zero = now + zeroAfterTime }

// completed records that a handshake is complete: the peer has the keys of the session.
func (t *timers) completed(now time.Duration, initiator bool) {
	t.retransmit = 0
	t.again()
	if initiator && t.greetings > 0 {
		t.confirms, t.confirm = 0, now+greetPause
	}
	t.greet = 0
}

// bootTime returns the time since boot (CLOCK_BOOTTIME).
func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}
