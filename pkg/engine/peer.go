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
	// wantSession means that a packet waits for a session, or that the session must be renewed.
	wantSession event = 1 << iota
	// confirmed means that a packet came under the keys of next.
	confirmed
	// insisted means that the peer still sends under a declined session, see proof.
	insisted
)

type peer struct {
	public  noise.PublicKey
	secrets *noise.Secrets
	jitter  time.Duration

	// The threads read sessions and removed under Device.state. Control changes them under its
	// write lock.
	sessions
	removed bool

	endpoint atomic.Pointer[sock.Endpoint]
	moved    atomic.Int64 // arrival time of the packet that last changed endpoint
	// unjudged reports whether judge must compare the source of endpoint with the route. refused is
	// the last endpoint whose source judge rejected.
	unjudged atomic.Bool
	// Before restsUntil, walks leave the peer out unless it is unjudged. It is owned by control, and
	// beside unjudged because a walk reads both. An event or a new timer sets it to 0.
	restsUntil time.Duration
	refused    atomic.Pointer[sock.Endpoint]

	// Times since boot, in ns, written by the threads; 0 means never. See view.
	unanswered, owed, lastSent, lastReceived atomic.Int64
	// asked is the time at which a thread last posted wantSession.
	asked     atomic.Int64
	dead      atomic.Bool // an initiation was not answered; written by control
	refreshed atomic.Bool // a received packet has already requested the renewal of the session
	// singly reports whether datagrams to the peer are sent one by one, without segmentation
	// offload. See retrySegments.
	singly             atomic.Bool
	sentBytes, rxBytes atomic.Uint64
	events             atomic.Uint32
	staged             staged

	// Owned by control, under Device.mu.
	timers         timers
	stamper        *noise.Stamper
	allowed        map[netip.Prefix]struct{}
	keepalive      time.Duration
	index          uint32 // index of the initiation that waits for its response; 0 means none
	wanted         bool   // an initiation waits for budget or tooSoon
	singlyUntil    time.Duration
	lastInitiation time.Duration
	lastConsumed   time.Duration
	lastHandshake  time.Time
	lastStamp      noise.Timestamp // of the last initiation to the peer
	lastSeenStamp  noise.Timestamp // of the last initiation from the peer
	greetedAt      netip.AddrPort  // the address of the last greeting
	observed       observed        // by the last call of Changed
	changed        uint64          // the number of the call that last found another observed
}

// sentAt records that a packet was sent; data reports whether it was not empty.
func (p *peer) sentAt(now time.Duration, data bool) {
	p.lastSent.Store(int64(now))
	if p.owed.Load() != 0 {
		p.owed.Store(0)
	}
	if data && p.unanswered.Load() == 0 {
		p.unanswered.Store(int64(now))
	}
}

// receivedAt records that an authentic packet came; data reports whether it was not empty.
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
		keepalive: p.keepalive, jitter: p.jitter, aging: p.sessions.aging()}
}

// move changes the endpoint to from, the source of an authentic packet that came at the time at.
// Control may handle a handshake message after the threads have handled later packets. So move
// ignores a packet that is older than the last one that changed the endpoint. It also ignores a
// source that judge has refused.
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

// forgetSource lets the kernel choose the source address again, because the current one may be the
// reason why the peer does not answer.
func (p *peer) forgetSource() {
	if old := p.endpoint.Load(); old != nil && old.Source.IsValid() {
		p.endpoint.CompareAndSwap(old, &sock.Endpoint{Addr: old.Addr, Scope: old.Scope})
	}
}

func randomJitter() time.Duration { return rand.N(maxJitter) }

// Limits of packets that wait for a session. Above maxStagedDead bytes, a device stages no packets
// for peers that do not answer.
const (
	maxStaged      = 128     // packets per peer
	maxStagedBytes = 4 << 20 // per device
	maxStagedDead  = maxStagedBytes / 2
)

// staged holds the packets of a peer that wait for a session, oldest first.
type staged struct {
	mu      sync.Mutex
	packets [][]byte
}

// stage queues a copy of a packet for a peer. If the peer's queue is full, its oldest packet is
// dropped.
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

// trim drops the oldest staged packets of a peer until n are left. The caller holds the lock of
// staged.
func (d *Device) trim(p *peer, n int) {
	for len(p.staged.packets) > n {
		d.stagedBytes.Add(-int64(len(p.staged.packets[0])))
		p.staged.packets[0] = nil
		p.staged.packets = p.staged.packets[1:]
		d.drops.add(stagedFull, 1)
	}
}

// markDead records that a peer does not answer, and drops all but the newest of its staged packets.
func (d *Device) markDead(p *peer) {
	if p.dead.Swap(true) {
		return
	}
	p.staged.mu.Lock()
	defer p.staged.mu.Unlock()
	d.trim(p, 1)
}

// unstage removes and returns all staged packets of a peer.
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

// dropStaged drops all staged packets of a peer.
func (d *Device) dropStaged(p *peer) { d.drops.add(stagedGivenUp, len(d.unstage(p))) }
