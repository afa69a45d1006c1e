package engine

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// event is a set of bits by which threads notify control about a peer.
type event = uint32

const (
	// wantSession: a packet waits for a session, or the session is to be renewed.
	wantSession event = 1 << iota
	// confirmed: a packet came under the keys of next.
	confirmed
	// insisted: the peer still sends under a session that gave way.
	insisted
)

// peer is one peer.
type peer struct {
	public  noise.PublicKey
	secrets *noise.Secrets
	jitter  time.Duration

	// Read by the threads under Device.state; changed by control under its write lock.
	sessions
	removed bool

	endpoint atomic.Pointer[sock.Endpoint]
	moved    atomic.Int64 // when endpoint last followed a packet
	// unjudged reports whether the source of endpoint must be compared with the route; refused is
	// the last source that did not suit it. See judge.
	unjudged atomic.Bool
	refused  atomic.Pointer[sock.Endpoint]

	// Times since boot, written by the threads; 0 means never. See view.
	unanswered, owed, lastSent, lastReceived atomic.Int64
	// asked is the time at which a thread last posted wantSession.
	asked     atomic.Int64
	dead      atomic.Bool // an initiation was not answered; written by control
	refreshed atomic.Bool // renewal on receiving was requested
	// singly reports whether datagrams to the peer are sent one by one, without segmentation
	// offload, see retrySegments.
	singly             atomic.Bool
	sentBytes, rxBytes atomic.Uint64
	events             atomic.Uint32
	staged             staged

	// Owned by control, under Device.mu.
	timers         timers
	stamper        *noise.Stamper
	allowed        map[netip.Prefix]struct{}
	keepalive      time.Duration
	index          uint32 // of the initiation that waits for its response; 0 means none
	wanted         bool   // an initiation waits for the budget
	singlyUntil    time.Duration
	lastInitiation time.Duration
	lastConsumed   time.Duration
	lastHandshake  time.Time
	lastStamp      noise.Timestamp // ours
	lastSeenStamp  noise.Timestamp // of the peer
	greetedAt      netip.AddrPort
}

// sentAt records that an authentic packet was sent; data reports that it was not empty.
func (p *peer) sentAt(now time.Duration, data bool) {
	p.lastSent.Store(int64(now))
	if p.owed.Load() != 0 {
		p.owed.Store(0)
	}
	if data && p.unanswered.Load() == 0 {
		p.unanswered.Store(int64(now))
	}
}

// receivedAt records that an authentic packet came.
func (p *peer) receivedAt(now time.Duration, data bool) {
	p.lastReceived.Store(int64(now))
	if p.unanswered.Load() != 0 {
		p.unanswered.Store(0)
	}
	if data && p.owed.Load() == 0 {
		p.owed.Store(int64(now))
	}
}

func (p *peer) view(now time.Duration) view {
	return view{now: now, unanswered: time.Duration(p.unanswered.Load()),
		owed:      time.Duration(p.owed.Load()),
		traversal: time.Duration(max(p.lastSent.Load(), p.lastReceived.Load())),
		keepalive: p.keepalive, jitter: p.jitter}
}

// move changes the endpoint to the source of an authentic packet of that time. Control handles a
// handshake message later than the threads handle the packets behind it. So a message that is older
// than the last move changes nothing.
func (p *peer) move(from *sock.Endpoint, at time.Duration) {
	old := p.endpoint.Load()
	if old != nil && *old == *from || int64(at) < p.moved.Load() {
		return
	}
	if r := p.refused.Load(); r != nil && *r == *from && old != nil && old.Addr == from.Addr {
		return
	}
	ep := *from
	p.endpoint.Store(&ep)
	p.unjudged.Store(true)
	p.moved.Store(int64(at))
}

// forgetSource lets the kernel choose the source address again: the present one may be the cause of
// silence.
func (p *peer) forgetSource() {
	if old := p.endpoint.Load(); old != nil && old.Source.IsValid() {
		p.endpoint.CompareAndSwap(old, &sock.Endpoint{Addr: old.Addr, Scope: old.Scope})
	}
}

func randomJitter() time.Duration { return rand.N(maxJitter) }

// Limits of packets that wait for a session. Above maxStagedDead bytes a device keeps none for
// peers that do not answer.
const (
	maxStaged      = 128     // packets per peer
	maxStagedBytes = 4 << 20 // per device
	maxStagedDead  = maxStagedBytes / 2
)

// staged are packets that wait for a session, the oldest first.
type staged struct {
	mu      sync.Mutex
	packets [][]byte
}

// stage keeps a copy of a packet for a peer. A full queue loses its oldest packet.
func (d *Device) stage(p *peer, b []byte) {
	total := d.stagedBytes.Add(int64(len(b)))
	if total > maxStagedBytes || total > maxStagedDead && p.dead.Load() {
		d.stagedBytes.Add(-int64(len(b)))
		d.drops.add(stagedFull, 1)
		return
	}
	c := append([]byte(nil), b...)
	p.staged.mu.Lock()
	defer p.staged.mu.Unlock()
	p.staged.packets = append(p.staged.packets, c)
	d.trim(p, maxStaged)
}

// trim drops the oldest packets of a peer but for n. The caller holds the lock of staged.
func (d *Device) trim(p *peer, n int) {
	for len(p.staged.packets) > n {
		d.stagedBytes.Add(-int64(len(p.staged.packets[0])))
		p.staged.packets[0] = nil
		p.staged.packets = p.staged.packets[1:]
		d.drops.add(stagedFull, 1)
	}
}

// markDead records that a peer does not answer, and keeps only the newest packet for it.
func (d *Device) markDead(p *peer) {
	if p.dead.Swap(true) {
		return
	}
	p.staged.mu.Lock()
	defer p.staged.mu.Unlock()
	d.trim(p, 1)
}

// unstage takes all packets that wait.
func (d *Device) unstage(p *peer) [][]byte {
	p.staged.mu.Lock()
	out := p.staged.packets
	p.staged.packets = nil
	p.staged.mu.Unlock()
	for _, b := range out {
		d.stagedBytes.Add(-int64(len(b)))
	}
	return out
}

// dropStaged drops all packets that wait.
func (d *Device) dropStaged(p *peer) { d.drops.add(stagedGivenUp, len(d.unstage(p))) }
