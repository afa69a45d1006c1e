package pathmtu

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var timing = Timing{Interval: time.Minute, RaiseMin: 10 * time.Second,
	RaiseInterval: 10 * time.Minute, RetryMin: time.Second, Tries: 3}

// path is a simulated path and its clock.
type path struct {
	device int
	mtu    int     // the largest inner packet after padding; 0 carries nothing
	loss   float64 // of probes that fit
	now    time.Time
	from   time.Time // before which it carries nothing
	rand   func() float64
	sent   int
}

// carries reports whether a packet of size comes through: WireGuard pads it to a
// multiple of 16, but not beyond the MTU of the device.
func (p *path) carries(size int) bool {
	padded := min((size+15)/16*16, p.device)
	return !p.now.Before(p.from) && padded <= p.mtu && (p.loss == 0 || p.rand() >= p.loss)
}

// run runs the search on the simulated path for the time d.
func (p *path) run(s *Search, d time.Duration) {
	for end := p.now.Add(d); ; {
		size, ok := s.Probe(p.now)
		switch {
		case !ok && s.Next().After(end):
			p.now = end
			return
		case !ok:
			p.now = s.Next()
		case p.carries(size):
			p.sent++
			p.now = p.now.Add(time.Millisecond)
			s.Answered(p.now)
		default:
			p.sent++
			p.now = p.now.Add(300 * time.Millisecond)
			s.Lost(p.now)
		}
	}
}

// best returns the largest size that a search can find: the device's MTU, or else a multiple of 16.
func (p *path) best() int {
	if p.mtu >= p.device {
		return p.device
	}
	return p.mtu / 16 * 16
}

func start() time.Time { return time.Unix(1_000_000, 0) }

func TestAnyPathIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		floor := rapid.SampledFrom([]int{576, 1280}).Draw(t, "floor")
		p := &path{device: rapid.IntRange(floor, 9216).Draw(t, "device"), now: start()}
		p.mtu = rapid.IntRange(floor, p.device).Draw(t, "path")
		s := NewSearch(floor, p.device, timing, p.now)
		p.run(s, 30*time.Second)
		if s.MTU() != p.best() {
			t.Fatalf("found %d, want %d", s.MTU(), p.best())
		}
		// Narrower: noticed within an interval and the search.
		p.mtu = rapid.IntRange(floor, p.mtu).Draw(t, "narrower")
		p.run(s, timing.Interval+30*time.Second)
		if s.MTU() != p.best() {
			t.Fatalf("narrower: found %d, want %d", s.MTU(), p.best())
		}
		// Wide again: noticed within the raise interval and a check.
		p.mtu = p.device
		p.run(s, timing.RaiseInterval+2*timing.Interval)
		if s.MTU() != p.device {
			t.Fatalf("wide again: found %d, want %d", s.MTU(), p.device)
		}
	})
}

// TestLossNeverMakesABlackHole adds random loss. The result may then be too small, but never too
// large for longer than a check takes.
func TestLossNeverMakesABlackHole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &path{device: rapid.IntRange(1280, 9216).Draw(t, "device"), now: start()}
		p.mtu = rapid.IntRange(1280, p.device).Draw(t, "path")
		p.loss = rapid.Float64Range(0, 0.3).Draw(t, "loss")
		// Only the seed is drawn. If rapid drew the fate of each packet, it would try to lose all
		// of them.
		p.rand = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "luck"), 0)).Float64
		s := NewSearch(1280, p.device, timing, p.now)
		p.run(s, 10*time.Minute)
		if s.MTU() > p.best() {
			t.Fatalf("believes %d, the path carries %d", s.MTU(), p.best())
		}
	})
}

func TestDeadPeerDoesNotLowerTheMTU(t *testing.T) {
	p := &path{device: 1440, mtu: 1440, now: start()}
	s := NewSearch(576, 1440, timing, p.now)
	p.run(s, time.Minute)
	p.mtu = 0
	p.sent = 0
	p.run(s, time.Hour)
	if s.MTU() != 1440 {
		t.Errorf("a dead peer lowered the mtu to %d", s.MTU())
	}
	if p.sent > 60*2*timing.Tries+50 {
		t.Errorf("%d probes in an hour to a dead peer", p.sent)
	}
	p.mtu = 1300
	p.run(s, 2*timing.Interval)
	if s.MTU() != 1296 {
		t.Errorf("back on a narrow path: %d, want 1296", s.MTU())
	}
}

func TestQuietWhenNothingChanges(t *testing.T) {
	p := &path{device: 1440, mtu: 1440, now: start()}
	s := NewSearch(576, 1440, timing, p.now)
	p.run(s, time.Hour)
	if p.sent > 61 {
		t.Errorf("%d probes in an hour, want one a minute", p.sent)
	}
}

func TestDeviceBelowTheFloor(t *testing.T) {
	p := &path{device: 500, mtu: 500, now: start()}
	s := NewSearch(576, 500, timing, p.now)
	p.run(s, time.Hour)
	if s.MTU() != 500 {
		t.Errorf("mtu %d, want 500", s.MTU())
	}
}

// A peer that comes up during its first probes has a wide path, regardless of which probes it
// misses.
func TestLatePeerDoesNotLowerTheMTU(t *testing.T) {
	for late := time.Duration(0); late < 10*time.Second; late += 50 * time.Millisecond {
		p := &path{device: 1440, mtu: 1440, now: start(), from: start().Add(late)}
		s := NewSearch(1280, p.device, timing, p.now)
		p.run(s, 30*time.Second)
		if s.MTU() != p.device {
			t.Fatalf("the peer came after %v, and %d was believed", late, s.MTU())
		}
	}
}

func TestBelievedSizeIsTheFirstAndNotTheLast(t *testing.T) {
	p := &path{device: 1440, mtu: 1300, now: start()}
	s := NewSearch(576, 1440, timing, p.now)
	s.Believe(1296)
	if size, ok := s.Probe(p.now); !ok || size != 1296 || s.MTU() != 1296 {
		t.Fatalf("begins with %d, believes %d", size, s.MTU())
	}
	p.run(s, time.Minute)
	if s.MTU() != 1296 {
		t.Errorf("the narrow path: believes %d", s.MTU())
	}
	wide := &path{device: 1440, mtu: 1440, now: start()}
	s = NewSearch(576, 1440, timing, wide.now)
	s.Believe(1296)
	wide.run(s, time.Second)
	if s.MTU() != 1440 {
		t.Errorf("the path is wide again: believes %d", s.MTU())
	}
}

// slowPath answers each probe that fits after a random delay.
type slowPath struct {
	path
	delay   func() time.Duration
	answers []answer
}

type answer struct {
	sent, at time.Time
	size     int
}

const wait = 300 * time.Millisecond

// run runs the search for the time d and returns the smallest size that it believed.
func (p *slowPath) run(s *Search, d time.Duration) (least int) {
	least = s.MTU()
	sent := time.Time{} // of the probe under way, zero without one
	for end := p.now.Add(d); p.now.Before(end); least = min(least, s.MTU()) {
		if s.Idle() && !p.now.Before(s.Next()) {
			p.answers = nil
		}

		size, probing := s.Probe(p.now)
		if probing && sent.IsZero() {
			sent = p.now
			if p.carries(size) {
				p.answers = append(p.answers, answer{sent, sent.Add(p.delay()), size})
			}
		}
		deadline := s.Next()
		if probing {
			deadline = sent.Add(wait)
		}
		i := p.first()
		if i < 0 || p.answers[i].at.After(deadline) {
			if p.now = deadline; probing {
				s.Lost(p.now)
			}
			sent = time.Time{}
			continue
		}

		a := p.answers[i]
		p.now, p.answers = a.at, slices.Delete(p.answers, i, i+1)
		if a.sent.Equal(sent) {
			s.Answered(p.now)
			sent = time.Time{}
		} else if s.AnsweredLate(a.size, p.now) {
			sent = time.Time{}
		}
	}
	return least
}

// first returns the index of the answer that comes next, or -1 if there is none.
func (p *slowPath) first() int {
	next := -1
	for i, a := range p.answers {
		if next < 0 || a.at.Before(p.answers[next].at) {
			next = i
		}
	}
	return next
}

// TestSlowPeerDoesNotLowerTheMTU has a peer whose answers come later than probes count as lost. A
// busy machine lost IPv6 that way: 976 bytes were found on a path that carried 1,440.
func TestSlowPeerDoesNotLowerTheMTU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &slowPath{path: path{device: 1440, now: start()}}
		p.mtu = rapid.SampledFrom([]int{1440, 1440, 1360, 1280, 1008}).Draw(t, "path")
		slowest := rapid.Int64Range(1, 850).Draw(t, "slowest")
		luck := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "luck"), 0))
		p.delay = func() time.Duration {
			return time.Duration(luck.Int64N(slowest)) * time.Millisecond
		}
		s := NewSearch(576, p.device, timing, p.now)
		least := p.run(s, 10*time.Minute)
		if p.mtu == p.device && least < p.device {
			t.Fatalf("%d was believed, the path carries %d", least, p.device)
		}
		if s.MTU() != p.best() {
			t.Fatalf("believes %d, the path carries %d", s.MTU(), p.best())
		}
	})
}

// TestWrongSizeDoesNotStay has a path that loses many probes for a while.
func TestWrongSizeDoesNotStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &path{device: 1440, mtu: 1440, now: start()}
		p.rand = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "luck"), 0)).Float64
		s := NewSearch(576, p.device, timing, p.now)
		for range 10 {
			p.loss = 0.7
			p.run(s, timing.Interval)
			p.loss = 0
			p.run(s, 4*timing.Interval)
			if s.MTU() != p.device {
				t.Fatalf("believes %d four minutes after the losses", s.MTU())
			}
		}
	})
}
