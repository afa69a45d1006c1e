package engine

import "sync"

// turns lets the receiving threads of a device share its sockets. One thread, the leader, receives.
// Several threads can open batches at the same time. Batches are delivered in the order in which
// they were received. The threads share sockets, because a socket per thread needs SO_REUSEPORT,
// which lets other processes bind the port too.
//
// While one thread is fast enough, it keeps the lead and no other thread wakes up.
type turns struct {
	mu      sync.Mutex
	free    sync.Cond // signalled when no thread leads
	due     sync.Cond // signalled when the next batch may be delivered
	led     bool      // a thread leads
	drawn   uint64    // number of batches received
	through uint64    // number of batches delivered
}

func newTurns() *turns {
	t := new(turns)
	t.free.L, t.due.L = &t.mu, &t.mu
	return t
}

// lead waits until no thread leads, and makes the caller the leader.
func (t *turns) lead() {
	t.mu.Lock()
	for t.led {
		t.free.Wait()
	}
	t.led = true
	t.mu.Unlock()
}

// follow ends the caller's lead, so that another thread can receive.
func (t *turns) follow() {
	t.mu.Lock()
	t.led = false
	t.mu.Unlock()
	t.free.Signal()
}

// draw returns the number of the batch that the leader has received. The caller already holds
// Device.state. If it waited for state after draw, later batches would have to wait for it in
// await.
func (t *turns) draw() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drawn++
	return t.drawn - 1
}

// await waits until all batches before this one are delivered.
func (t *turns) await(batch uint64) {
	t.mu.Lock()
	for t.through != batch {
		t.due.Wait()
	}
	t.mu.Unlock()
}

// done records that the caller delivered its batch, after await.
func (t *turns) done() {
	t.mu.Lock()
	t.through++
	t.mu.Unlock()
	t.due.Broadcast()
}
