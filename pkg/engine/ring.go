package engine

import (
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

const (
	ringSize = 1024
	// maxCookies bounds the cookies in the ring, because any host that saw an index can send them:
	// they have no MAC1.
	maxCookies = 64
)

// message is a received handshake message.
type message struct {
	n    int
	data [noise.InitiationSize]byte
	from sock.Endpoint
	at   time.Duration // arrival time
}

// ring is the queue of handshake messages from the threads to control. It holds only messages with
// a valid MAC1, and cookies for an index of this device.
type ring struct {
	mu    sync.Mutex
	slots [ringSize]message
	head  int
	n     int
	// cookies is the number of cookies among the n messages.
	cookies int
}

// put appends a copy of a message. It returns false if the ring is full, or if the message is a
// cookie and the ring already has maxCookies.
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

// take moves the oldest message to m, and returns the number of messages behind it that are not
// cookies. ok is false if the ring is empty.
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

// exchanges holds the peers whose initiation waits for its response, by index. Control changes the
// map. The threads look up the index of a cookie in it.
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

// pending holds the peers that have events, each at most once.
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

// takePending empties pending and returns its peers. It reuses the memory of into.
func (d *Device) takePending(into []*peer) []*peer {
	d.pending.mu.Lock()
	defer d.pending.mu.Unlock()
	into = append(into[:0], d.pending.peers...)
	clear(d.pending.peers)
	d.pending.peers = d.pending.peers[:0]
	return into
}
