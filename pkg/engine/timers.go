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
	zeroAfterTime    = 3 * rejectAfterTime
	// refreshOnReceive is the age at which an initiator that only receives begins a handshake.
	refreshOnReceive = rejectAfterTime - keepaliveTimeout - rekeyTimeout
	// floodInterval is the least time between two initiations of a peer.
	floodInterval = 20 * time.Millisecond
)

// Greetings. A peer that had a session with the process before this one cannot notice that its keys
// are gone; when it only receives, it would never find out. So a peer without a handshake is
// greeted with an initiation, repeated much earlier than after rekeyTimeout, since the first ones
// of both sides often cross. A handshake that succeeded so is confirmed a few times: the peer uses
// its old keys until it has received a packet under the new ones.
const (
	maxGreetings     = 6
	maxConfirmations = 3
	greetPause       = 150 * time.Millisecond
)

// timers holds the times of a peer's next actions, on a clock that begins at boot; 0 means never.
// It is pure: due decides, and the caller acts.
type timers struct {
	retransmit time.Duration // the initiation is repeated
	attempts   int
	zero       time.Duration // keys are zeroed
	greet      time.Duration
	greetings  int
	confirm    time.Duration
	confirms   int
}

// view is the input of due beside the timers.
type view struct {
	now time.Duration
	// unanswered is the time when data was first sent since a packet came. owed is the time when
	// data first came since a packet was sent. traversal is the time of the last packet in either
	// direction. Zero means never.
	unanswered, owed, traversal time.Duration
	keepalive                   time.Duration
	jitter                      time.Duration
}

// action is a set of bits, the actions that are due.
type action uint16

const (
	doRetry    action = 1 << iota // repeat the initiation
	doGiveUp                      // drop staged packets
	doInitiate                    // the peer stopped to answer
	doKeepalive
	doZero
	doGreet
	doConfirm
)

// due returns what is due and moves the timers on, but for an initiation, which began does.
func (t *timers) due(v view) action {
	var a action
	past := func(at time.Duration) bool { return at != 0 && v.now >= at }
	if past(t.retransmit) {
		if t.attempts > maxAttempts {
			a |= doGiveUp
			t.retransmit = 0
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

// began notes that an initiation was sent.
func (t *timers) began(now, jitter time.Duration) { t.retransmit = now + rekeyTimeout + jitter }

// greeted notes that an initiation was sent as a greeting; jitter is between 0 and 1.
func (t *timers) greeted(now time.Duration, jitter float64) {
	t.greetings++
	t.greet = 0
	if t.greetings < maxGreetings {
		pause := greetPause << (t.greetings - 1)
		t.greet = now + pause/2 + time.Duration(jitter*float64(pause))
	}
}

// derived notes that a session was derived.
func (t *timers) derived(now time.Duration) { t.zero = now + zeroAfterTime }

// completed notes that the peer has proven to have the session's keys.
func (t *timers) completed(now time.Duration, initiator bool) {
	t.retransmit, t.attempts = 0, 0
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
