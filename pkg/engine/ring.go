package engine

import (
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

const (
	ringSize = 1024
	// maxCookies is the number of messages that may be cookies: they have no MAC that limits their
	// possible senders.
	maxCookies = 64
)

// message is a handshake message as it came.
type message struct {
	n    int
	data [noise.InitiationSize]byte
	from sock.Endpoint
	at   time.Duration // when it came
}

// ring is the queue of handshake messages from the threads to control. Only those with a right MAC1
// and cookies for one of our indices get here.
type ring struct {
	mu    sync.Mutex
	slots [ringSize]message
	head  int
	n     int
	// cookies is how many of n are cookies.
	cookies int
}

// put returns false when the ring is full.
func (r *ring) put(b []byte, from *sock.Endpoint, now time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cookie := b[0] == noise.TypeCookie
	if r.n == ringSize || cookie && r.cookies == maxCookies {
		return false
	}
	if cookie {
		r.cookies++
	}
	m := &r.slots[(r.head+r.n)%ringSize]
	m.n = copy(m.data[:], b)
	m.from, m.at = *from, now
	r.n++
	return true
}

// take copies the oldest message to m, and returns how many messages other than cookies wait behind
// it. ok is false without a message.
func (r *ring) take(m *message) (waiting int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == 0 {
		return 0, false
	}
	*m = r.slots[r.head]
	r.head = (r.head + 1) % ringSize
	r.n--
	if m.data[0] == noise.TypeCookie {
		r.cookies--
	}
	return r.n - r.cookies, true
}

// exchanges holds the peers whose initiation waits for its response, by index. Control changes
// them; the threads look up whether a cookie belongs to one.
type exchanges struct {
	mu      sync.Mutex
	byIndex map[uint32]*peer
}

func (e *exchanges) get(index uint32) *peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byIndex[index]
}

func (e *exchanges) put(index uint32, p *peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byIndex == nil {
		e.byIndex = map[uint32]*peer{}
	}
	e.byIndex[index] = p
}

func (e *exchanges) remove(index uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byIndex, index)
}

// pending are the peers that have events, each at most once.
type pending struct {
	mu    sync.Mutex
	peers []*peer
}

// post notifies control of an event of a peer.
func (d *Device) post(p *peer, e event) {
	if p.events.Or(e) != 0 {
		return
	}
	d.pending.mu.Lock()
	d.pending.peers = append(d.pending.peers, p)
	d.pending.mu.Unlock()
	d.wakeControl()
}

// takePending returns the peers that have events.
func (d *Device) takePending(into []*peer) []*peer {
	d.pending.mu.Lock()
	defer d.pending.mu.Unlock()
	into = append(into[:0], d.pending.peers...)
	clear(d.pending.peers)
	d.pending.peers = d.pending.peers[:0]
	return into
}
