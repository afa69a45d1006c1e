package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// garbage returns a message of random bytes with the type and the size of a handshake message.
func garbage(r *rand.Rand, kind byte) []byte {
	b := make([]byte, handshakeSize(uint32(kind)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	copy(b, []byte{kind, 0, 0, 0})
	return b
}

// stamped returns an initiation with a right MAC1 for a device; everything else in it is wrong.
func stamped(r *rand.Rand, d *Device) []byte {
	b := garbage(r, noise.TypeInitiation)
	noise.NewStamper(d.mu.id.Public).Stamp(b, 0)
	return b
}

// keyed returns a device with a private key, and its receiver.
func keyed(t *testing.T) (*Device, *receiver) {
	t.Helper()
	d, _ := quiet(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setPrivate(&[32]byte{7}, d.now())
	return d, d.shards[0].rx
}

// Messages that need no knowledge of a key reach neither control nor its queue, do not count as
// load, and allocate no memory. Among ten thousand of them, a message for this device passes.
func TestGarbageCostsControlNothing(t *testing.T) {
	d, rx := keyed(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	r := rand.New(rand.NewPCG(5, 6))
	m := &sock.Message{From: sock.Endpoint{Addr: netip.MustParseAddrPort("198.18.0.9:1000")}}
	now := d.now()
	d.awake.Store(false)
	for i := range 10000 {
		rx.datagram(garbage(r, byte(1+i%3)), m, now)
	}
	if d.ring.n != 0 || d.awake.Load() {
		t.Errorf("%d messages wait for control, which was told: %v", d.ring.n, d.awake.Load())
	}
	bad, cookies := d.Drops()["bad_mac1"], d.Drops()["bad_cookie"]
	if bad < 6666 || cookies < 3333 {
		t.Errorf("drops %v, want 10,000 of bad_mac1 and bad_cookie", d.Drops())
	}

	for kind := byte(1); kind <= 3; kind++ {
		b := garbage(r, kind)
		if n := testing.AllocsPerRun(100, func() { rx.datagram(b, m, now) }); n > 0 {
			t.Errorf("garbage of type %d makes %v allocations", kind, n)
		}
	}

	rx.datagram(stamped(r, d), m, now)
	if d.ring.n != 1 || !d.awake.Load() {
		t.Errorf("%d messages wait for control, want the one for this device", d.ring.n)
	}
	if d.mu.load.high(now) {
		t.Error("garbage is load")
	}
}

// Cookie messages, which have no MAC1, cannot fill the queue so that other messages are dropped.
func TestCookiesHaveAShareOfTheQueue(t *testing.T) {
	d, rx := keyed(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	r := rand.New(rand.NewPCG(7, 8))
	m := &sock.Message{From: sock.Endpoint{Addr: netip.MustParseAddrPort("[fd00::9]:1000")}}
	cookie := garbage(r, noise.TypeCookie)
	copy(cookie[4:], []byte{1, 0, 0, 0}) // the session's index
	for range 2 * ringSize {
		rx.datagram(cookie, m, d.now())
	}
	if d.ring.n != maxCookies {
		t.Errorf("%d cookies wait, want %d", d.ring.n, maxCookies)
	}
	rx.datagram(stamped(r, d), m, d.now())
	var first message
	if waiting, ok := d.ring.take(&first); !ok || waiting != 1 {
		t.Errorf("%d messages count as waiting behind a cookie, want the one that is not a cookie",
			waiting)
	}
	for ok := true; ok; { // Control is not to see them.
		_, ok = d.ring.take(&first)
	}
}

// Messages with a correct MAC1 count as load if more arrive than a core can answer, or if they wait
// in the queue.
func TestLoadFollowsWhatACoreDoes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		count   int
		waiting int
		want    bool
	}{
		{"peers of a node that starts again", firstPerSecond, 127, false},
		{"more than a core answers", loadPerSecond + 1, 0, true},
		{"they wait", 1, loadWaiting, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l load
			now := time.Hour
			for range tc.count {
				l.note(tc.waiting, now)
			}
			if got := l.high(now); got != tc.want {
				t.Errorf("load %v, want %v", got, tc.want)
			}
			if l.high(now + loadHeld) {
				t.Error("there is load a second later")
			}
		})
	}
}
