package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// The kernel's selftest of the replay counter (drivers/net/wireguard/selftest/counter.c), as a
// table.
func TestReplayWindow(t *testing.T) {
	const w = windowSize
	type step struct {
		c    uint64
		want bool
	}

	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"in order and repeated", []step{{0, true}, {1, true}, {1, false}, {9, true}, {8, true},
			{7, true}, {7, false}, {w, true}, {w - 1, true},
			{w - 1, false}, {w - 2, true}, {w + 1, true}, {w + 2, true}, {w + 2, false},
			{w + 16, true}, {3, false}, {w + 16, false}, {w * 4, true},
			{w*4 - (w - 1), true}, {10, false}, {w*4 - w, true}, {w*4 - (w + 1), false},
			{w*4 - (w - 2), true}, {w*4 + 1 - w, false}, {0, false}}},
		{"at the limit of messages", []step{{rejectAfterMessages, false},
			{rejectAfterMessages - 1, true}, {rejectAfterMessages, false},
			{rejectAfterMessages - 1, false}, {rejectAfterMessages - 2, true},
			{rejectAfterMessages + 1, false}, {rejectAfterMessages + 2, false},
			{rejectAfterMessages - 2, false}, {rejectAfterMessages - 3, true}, {0, false}}},
		{"a leap over the whole window", []step{{5, true}, {5 + 3*w, true}, {5, false},
			{6 + 2*w, true}, {6 + 2*w, false}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var win window
			for i, s := range tc.steps {
				if got := win.accept(s.c); got != s.want {
					t.Fatalf("step %d, counter %d: accepted %v, want %v", i, s.c, got, s.want)
				}
			}
		})
	}
}

func TestReplayWindowAgreesWithASet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var w window
	seen := map[uint64]bool{}
	greatest := uint64(0)
	base := uint64(0)
	for range 500000 {
		if r.IntN(5000) == 0 {
			base += r.Uint64N(3 * windowSize)
		}
		c := base + r.Uint64N(2*windowSize)
		if r.IntN(3) == 0 {
			base++
		}
		want := !seen[c] && (c > greatest || greatest-c <= windowSize)
		if got := w.accept(c); got != want {
			t.Fatalf("counter %d, greatest %d: accepted %v, want %v", c, greatest, got, want)
		}
		seen[c] = true
		greatest = max(greatest, c)
	}
}

func TestWindowIs8128Wide(t *testing.T) {
	var w window
	w.accept(10000)
	if w.accept(10000-8129) || !w.accept(10000-8128) {
		t.Error("the window is not 8,128 counters wide")
	}
}

// The table of allowed IPs agrees with a list that is searched from the longest prefix to the
// shortest.
func TestRoutesAgreeWithAList(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 30 {
		var table routes
		list := map[netip.Prefix]*peer{}
		peers := []*peer{{}, {}, {}, {}}
		random := func() netip.Addr {
			if r.IntN(2) == 0 {
				return netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(256)),
					byte(r.IntN(256))})
			}
			var b [16]byte
			b[0], b[7], b[8], b[15] = 0xfd, byte(r.IntN(3)), byte(r.IntN(256)), byte(r.IntN(256))
			return netip.AddrFrom16(b)
		}

		for step := range 400 {
			a := random()
			p, _ := a.Prefix(r.IntN(a.BitLen() + 1))
			who := peers[r.IntN(len(peers))]
			if r.IntN(3) == 0 {
				table.remove(p, who)
				if list[p] == who {
					delete(list, p)
				}
			} else {
				if from := table.insert(p, who); from != list[p] {
					t.Fatalf("step %d: insert %s took it from another", step, p)
				}
				list[p] = who
			}

			for range 5 {
				a := random()
				var want *peer
				best := -1
				for p, who := range list {
					if p.Contains(a) && p.Bits() > best {
						best, want = p.Bits(), who
					}
				}
				if got := table.lookup(a); got != want {
					t.Fatalf("step %d: lookup %s differs", step, a)
				}
			}
		}

		for p, who := range list {
			table.remove(p, who)
		}

		if table.v4 != nil || table.v6 != nil {
			t.Error("an empty table has nodes")
		}
	}
}

func TestAllowedIPInsideAnotherPeersPrefix(t *testing.T) {
	var table routes
	outer, inner := &peer{}, &peer{}
	table.insert(netip.MustParsePrefix("10.0.0.0/8"), outer)
	table.insert(netip.MustParsePrefix("10.1.0.0/16"), inner)
	if table.lookup(netip.MustParseAddr("10.1.2.3")) != inner ||
		table.lookup(netip.MustParseAddr("10.2.2.3")) != outer {
		t.Error("the longest prefix does not win")
	}
	table.remove(netip.MustParsePrefix("10.1.0.0/16"), inner)
	if table.lookup(netip.MustParseAddr("10.1.2.3")) != outer {
		t.Error("the outer prefix does not come back")
	}
}

func TestTimers(t *testing.T) {
	const s = time.Second

	for _, tc := range []struct {
		name string
		t    timers
		v    view
		want action
		then timers
	}{
		{"nothing", timers{}, view{now: 100 * s}, 0, timers{}},
		{"initiation not answered", timers{retransmit: 99 * s}, view{now: 100 * s}, doRetry,
			timers{retransmit: 99 * s}},
		{"initiation not answered yet", timers{retransmit: 101 * s}, view{now: 100 * s}, 0,
			timers{retransmit: 101 * s}},
		{"after 90 s of attempts", timers{retransmit: 99 * s, attempts: 19}, view{now: 100 * s},
			doGiveUp, timers{attempts: 19, zero: 640 * s}},
		{"after 90 s, most of them without budget",
			timers{retransmit: 99 * s, attempts: 3, until: 100 * s}, view{now: 100 * s}, doGiveUp,
			timers{attempts: 3, zero: 640 * s}},
		{"data sent, nothing came for 15 s", timers{}, view{now: 100 * s, unanswered: 85 * s},
			doInitiate, timers{}},
		{"data sent, nothing came for 14 s", timers{}, view{now: 100 * s, unanswered: 86 * s}, 0,
			timers{}},
		{"the same with jitter", timers{}, view{now: 100 * s, unanswered: 85 * s, jitter: s / 4}, 0,
			timers{}},
		{"data came, nothing sent for 10 s", timers{}, view{now: 100 * s, owed: 90 * s},
			doKeepalive, timers{}},
		{"data came, nothing sent for 9 s", timers{}, view{now: 100 * s, owed: 91 * s}, 0,
			timers{}},
		{"persistent keepalive", timers{}, view{now: 100 * s, keepalive: 25 * s, traversal: 75 * s},
			doKeepalive, timers{}},
		{"persistent keepalive, something passed", timers{},
			view{now: 100 * s, keepalive: 25 * s, traversal: 76 * s}, 0, timers{}},
		{"keys of 540 s", timers{zero: 100 * s}, view{now: 100 * s}, doZero, timers{}},
		{"greeting", timers{greet: 100 * s}, view{now: 100 * s}, doGreet, timers{greet: 100 * s}},
		{"confirmation", timers{confirm: 100 * s}, view{now: 100 * s}, doConfirm,
			timers{confirms: 1, confirm: 100*s + 300*time.Millisecond}},
		{"last confirmation", timers{confirm: 100 * s, confirms: 2}, view{now: 100 * s}, doConfirm,
			timers{confirms: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.t
			if a := got.due(tc.v); a != tc.want || got != tc.then {
				t.Errorf("action %b, timers %+v, want %b, %+v", a, got, tc.want, tc.then)
			}
		})
	}
}

func TestNothingIsDueWhileAPeerRests(t *testing.T) {
	const now, span = time.Hour, 20 * time.Second
	rng := rand.New(rand.NewPCG(1, 2))
	never := func(at time.Duration) time.Duration { return at * time.Duration(rng.IntN(2)) }
	within := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for range 20_000 {
		tm := timers{retransmit: never(now + within(span)), zero: never(now + within(span)),
			greet: never(now + within(span)), confirm: never(now + within(span))}
		v := view{now: now, unanswered: never(now - within(span)), owed: never(now - within(span)),
			traversal: now - within(span), keepalive: never(within(2 * span)),
			jitter: within(maxJitter), aging: never(now + within(span))}
		rest := tm.rest(v)

		end, ended := tm, v
		ended.now = max(rest, now)
		if rest != now+keepaliveTimeout && end.due(ended) == 0 {
			t.Fatalf("nothing is due at the end of a rest of %v: %+v, %+v", rest-now, tm, v)
		}
		if rest <= now {
			continue
		}
		v.now += within(rest - now)
		if v.unanswered == 0 {
			v.unanswered = never(now + within(v.now-now+1))
		}
		if v.owed == 0 {
			v.owed = never(now + within(v.now-now+1))
		}
		if a := tm.due(v); a != 0 {
			t.Fatalf("action %b during a rest of %v: %+v, %+v", a, rest-now, tm, v)
		}
	}
}

func TestGreetingsEnd(t *testing.T) {
	tm := timers{greet: 1}
	now := time.Duration(1)
	var pauses []time.Duration
	for tm.greet != 0 {
		pauses = append(pauses, tm.greet-now)
		now = tm.greet
		if tm.due(view{now: now})&doGreet == 0 {
			t.Fatal("no greeting is due")
		}
		tm.greeted(now, 0.5)
	}
	if len(pauses) != maxGreetings || !slices.IsSorted(pauses) || now > 10*time.Second {
		t.Errorf("pauses %v", pauses)
	}
}

func TestDeadPeersUseABudget(t *testing.T) {
	var b budget
	dead, live := 0, 0
	for ms := range 10000 {
		now := time.Duration(ms+1) * time.Millisecond
		for range 20 {
			if b.take(false, now) {
				dead++
			}
		}
		if ms%100 == 0 && b.take(true, now) {
			live++
		}
	}
	if dead > 10*repeatPerSecond+60 || live != 100 {
		t.Errorf("%d initiations to dead peers in 10 s and %d of 100 to live ones", dead, live)
	}
}

func TestRateLimitIsForEachAddress(t *testing.T) {
	var l limiter
	a, b := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	now := time.Hour

	n := 0
	for range 100 {
		if l.allow(a, now) {
			n++
		}
	}

	if n != 5 || !l.allow(b, now) {
		t.Errorf("%d of one address, want 5, and another's first", n)
	}
	if !l.allow(a, now+100*time.Millisecond) {
		t.Error("the address is limited for ever")
	}

	x, y := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::ffff:1")
	for range 5 {
		l.allow(x, now)
	}

	if l.allow(y, now) {
		t.Error("another address of the same /64 is not limited")
	}

	for i := range 10000 {
		l.allow(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), now)
	}

	if len(l.known) > maxLimited {
		t.Errorf("%d addresses are known, want at most %d", len(l.known), maxLimited)
	}
}

func TestLoadEnds(t *testing.T) {
	var l load
	now := time.Minute
	for range loadPerSecond + 1 {
		l.note(0, now)
	}
	if !l.high(now) || l.high(now+loadHeld) {
		t.Errorf("high %v, a second later %v", l.high(now), l.high(now+loadHeld))
	}
	l.note(0, now+5*time.Second)
	if l.high(now + 5*time.Second) {
		t.Error("cookies are asked for after a single message")
	}
}

func TestKeyLimitIsEnforced(t *testing.T) {
	var s session
	s.sent.Store(rejectAfterMessages - 64*maxBatch - 1)
	if _, ok := s.take(maxBatch); !ok {
		t.Error("below the limit no counter was given")
	}
	for range 10 {
		if _, ok := s.take(maxBatch); ok {
			t.Error("a counter was given beyond the limit")
		}
	}
	if s.sent.Load() >= rejectAfterMessages {
		t.Error("the counter passed the limit")
	}
}

func TestPaddingIsClampedToTheMTU(t *testing.T) {
	for _, tc := range []struct{ n, mtu, want int }{{0, 1420, 0}, {1, 1420, 16}, {16, 1420, 16},
		{1419, 1420, 1420}, {1420, 1420, 1420}, {1421, 1420, 1436}, {100, 0, 112}} {
		if got := padded(tc.n, tc.mtu); got != tc.want {
			t.Errorf("%d bytes at MTU %d: padded to %d, want %d", tc.n, tc.mtu, got, tc.want)
		}
	}
}
