package reach

import "time"

// mostMissed is the number of echoes in a row without an answer after which a peer may be dead.
const mostMissed = 3

// target is what a Prober knows about a peer.
type target struct {
	Peer
	seq uint16 // of the last echo
	// waiting reports whether the last echo has no answer yet. missed counts the echoes in a row
	// without an answer.
	waiting bool
	missed  int
	// since is when the counters of the peer were read after the first missed echo. A packet that
	// is noticed later came later.
	since time.Time
	dead  bool
}

// next records that another echo is sent. It reports whether the last one has no answer.
func (t *target) next() (missed bool) {
	if missed = t.waiting; missed {
		t.missed++
	}
	t.seq, t.waiting = t.seq+1, true
	return missed
}

// answered records the answer to an echo. Late answers count, too.
func (t *target) answered(seq uint16) {
	if t.seq-seq >= mostMissed {
		return
	}
	t.waiting = t.waiting && seq != t.seq
	t.alive()
}

// heard records when an authentic packet of the peer was last noticed, by counters that were read
// at now. It is called after each missed echo.
func (t *target) heard(at, now time.Time) {
	switch {
	case t.missed == 1:
		t.since = now
	case t.missed >= mostMissed && at.After(t.since):
		t.alive()
	case t.missed >= mostMissed:
		t.dead = true
	}
}

// untested records that no echo could be sent, so a missing answer means nothing.
func (t *target) untested() {
	t.waiting = false
	t.alive()
}

func (t *target) alive() { t.missed, t.dead = 0, false }
