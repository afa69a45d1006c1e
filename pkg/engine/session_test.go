package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// inState returns the sessions of a peer in a state, and a fresh one. Each has a letter as index: c
// is current, n is next, u to z are former, and f is fresh. u is the oldest and the only one that
// has expired. w was declined in favour of c, and the peer insisted.
func inState(st sessionState) (s sessions, fresh *session) {
	of := func(letter rune, born time.Duration) *session {
		return &session{local: uint32(letter), born: born}
	}
	for i, letter := range "uvwxyz" {
		s.former[i] = of(letter, time.Duration(i)*time.Second)
	}
	if st == sending || st == renewing {
		s.current = of('c', time.Minute)
		s.former[2].rival = s.current.local
	}
	if st == unproven || st == renewing {
		s.next = of('n', 2*time.Minute)
	}
	return s, of('f', rejectAfterTime)
}

// letters returns the sessions by their letters, a dash for none: current, next, former.
func letters(s sessions) string {
	all := ""
	for _, at := range s.all() {
		letter := "-"
		if *at != nil {
			letter = string(rune((*at).local))
		}
		all += letter
	}
	return all[:1] + " " + all[1:2] + " " + all[2:]
}

// Each event in each state does what the whitepaper requires (sections 5 and 6): a responder sends
// under a session after the peer's first packet, an initiator proves its keys at once, the sessions
// before receive until they expire, and keys are zeroed.
func TestEventsMoveSessions(t *testing.T) {
	const begun = armZero | finish | prove
	states := []string{"no session", "unproven", "sending", "renewing"}
	events := []string{"none", "accepted", "answered", "proven", "declined", "preferred", "aged",
		"over"}
	for _, tc := range []struct {
		from    sessionState
		event   sessionEvent
		want    string
		ended   string
		control move
	}{
		{noSession, accepted, "- f uvwxyz", "", armZero},
		{noSession, answered, "f - uvwxyz", "", begun},
		{noSession, proven, "- - uvwxyz", "", 0},
		{noSession, declined, "- - uvwxyz", "", 0},
		{noSession, preferred, "- - uvwxyz", "", 0},
		{noSession, aged, "- - -vwxyz", "u", 0},
		{noSession, over, "- - ------", "uvwxyz", 0},

		{unproven, accepted, "- f vwxyzn", "u", armZero},
		{unproven, answered, "f - vwxyzn", "u", begun},
		{unproven, proven, "n - uvwxyz", "", finish},
		{unproven, declined, "- n uvwxyz", "", 0},
		{unproven, preferred, "- n uvwxyz", "", 0},
		{unproven, aged, "- n -vwxyz", "u", 0},
		{unproven, over, "- - ------", "nuvwxyz", 0},

		{sending, accepted, "c f uvwxyz", "", armZero},
		{sending, answered, "f - vwxyzc", "u", begun},
		{sending, proven, "c - uvwxyz", "", 0},
		{sending, declined, "c - uvwxyz", "", 0},
		{sending, preferred, "w - uvcxyz", "", 0},
		{sending, aged, "c - -vwxyz", "u", 0},
		{sending, over, "- - ------", "cuvwxyz", 0},

		{renewing, accepted, "c f vwxyzn", "u", armZero},
		{renewing, answered, "f - wxyzcn", "uv", begun},
		{renewing, proven, "n - vwxyzc", "u", finish},
		{renewing, declined, "c - vwxyzn", "u", finish},
		{renewing, preferred, "w n uvcxyz", "", 0},
		{renewing, aged, "c n -vwxyz", "u", 0},
		{renewing, over, "- - ------", "cnuvwxyz", 0},
	} {
		t.Run(states[tc.from]+"/"+events[tc.event], func(t *testing.T) {
			before, fresh := inState(tc.from)
			as := letters(before)
			if before.state() != tc.from {
				t.Fatalf("state %d, want %d", before.state(), tc.from)
			}
			got, ended, moves := before.step(tc.event, fresh, rejectAfterTime, nil)
			gone := ""
			for _, s := range ended {
				gone += string(rune(s.local))
			}
			if letters(got) != tc.want || gone != tc.ended || moves&begun != tc.control {
				t.Errorf("sessions %q, ended %q, control %b, want %q, %q, %b", letters(got), gone,
					moves&begun, tc.want, tc.ended, tc.control)
			}
			if letters(before) != as {
				t.Errorf("the sessions before are %q now, were %q", letters(before), as)
			}
		})
	}
}

// Over any sequence of events, no session is in two places or lost, none comes back once it ended,
// and packets are sent only under a session that the peer has proven to have.
func TestSessionsKeepTheProtocolsRules(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 3))
	var s sessions
	alive := map[*session]bool{} // and whether the peer has proven to have it
	now := time.Duration(0)
	for step := range 100000 {
		now += time.Duration(r.IntN(5)) * time.Second
		fresh := &session{local: uint32(step + 1), born: now}
		e := sessionEvent(r.IntN(int(sessionEvents)))
		if e == over && r.IntN(50) > 0 {
			continue
		}

		switch e {
		case accepted:
			alive[fresh] = false
		case answered:
			alive[fresh] = true
		case proven, declined:
			if s.next != nil {
				alive[s.next] = true
			}
			if e == declined && s.state() == renewing {
				s.next.rival = s.current.local
			}
		}
		was := s.current
		var ended []*session
		s, ended, _ = s.step(e, fresh, now, nil)

		for _, x := range ended {
			if _, ok := alive[x]; !ok {
				t.Fatalf("step %d, event %d: a session ends twice", step, e)
			}
			delete(alive, x)
		}
		places := 0
		for i, at := range s.all() {
			if *at == nil {
				continue
			}
			places++
			if _, ok := alive[*at]; !ok {
				t.Fatalf("step %d, event %d: place %d has a session that ended", step, e, i)
			}
		}
		if places != len(alive) {
			t.Fatalf("step %d, event %d: %d sessions in %d places", step, e, len(alive), places)
		}
		if s.current != nil && !alive[s.current] {
			t.Fatalf("step %d, event %d: packets are sent under an unproven session", step, e)
		}
		if (e == accepted || e == aged) && s.current != was {
			t.Fatalf("step %d, event %d: packets are sent under another session", step, e)
		}
		if e == aged && slices.ContainsFunc(s.former[:], func(x *session) bool {
			return x != nil && x.expired(now)
		}) {
			t.Fatalf("step %d: a session receives after %s", step, rejectAfterTime)
		}
	}
}

// The first packet under next makes it current, unless the handshakes of both sides crossed and our
// key is the greater one.
func TestCrossedHandshakesKeepOneSession(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		current, used, crossed bool
		apart                  time.Duration
		greater                bool
		want                   sessionEvent
	}{
		{"no packet came yet", true, false, false, 0, true, noEvent},
		{"the only session", false, true, false, 0, true, proven},
		{"a renewal", true, true, false, 0, true, proven},
		{"crossed, our key is greater", true, true, true, 0, true, declined},
		{"crossed, our key is smaller", true, true, true, 0, false, proven},
		{"crossed, too late", true, true, true, crossing, true, proven},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := sessions{next: &session{born: time.Hour + tc.apart, crossed: tc.crossed}}
			s.next.used.Store(tc.used)
			if tc.current {
				s.current = &session{born: time.Hour}
			}
			if got := s.proof(tc.greater); got != tc.want {
				t.Errorf("event %d, want %d", got, tc.want)
			}
		})
	}

	if got := new(sessions).proof(true); got != noEvent {
		t.Errorf("event %d without sessions, want none", got)
	}
}
