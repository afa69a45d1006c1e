package engine

import "sync"

// turns let the receiving threads of a device share its sockets: one of them receives, several open
// batches, and batches are delivered in the order in which they came. The sockets cannot be one per
// thread: that takes SO_REUSEPORT, with which other processes could have the port too.
//
// While one thread suffices it keeps the lead, and no other wakes up.
type turns struct {
	mu      sync.Mutex
	free    sync.Cond // no thread leads
	due     sync.Cond // another batch may be delivered
	led     bool
	drawn   uint64 // batches that were received
	through uint64 // batches that were delivered
}

func newTurns() *turns {
	t := new(turns)
	t.free.L, t.due.L = &t.mu, &t.mu
	return t
}

// lead waits until no other thread receives.
func (t *turns) lead() {
	t.mu.Lock()
	for t.led {
		t.free.Wait()
	}
	t.led = true
	t.mu.Unlock()
}

// follow lets another thread receive.
func (t *turns) follow() {
	t.mu.Lock()
	t.led = false
	t.mu.Unlock()
	t.free.Signal()
}

// draw returns the number of a batch that the leader received. The caller holds Device.state, so
// that a thread which waits for the state does not keep later batches waiting, see await.
func (t *turns) draw() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drawn++
	return t.drawn - 1
}

// await waits until all batches before this one were delivered.
func (t *turns) await(batch uint64) {
	t.mu.Lock()
	for t.through != batch {
		t.due.Wait()
	}
	t.mu.Unlock()
}

// done notes that the batch whose turn it is was delivered.
func (t *turns) done() {
	t.mu.Lock()
	t.through++
	t.mu.Unlock()
	t.due.Broadcast()
}
