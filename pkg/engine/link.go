package engine

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// checkLink brings the device up or down with the TUN's link, and updates the MTU.
func (d *Device) checkLink(now time.Duration) {
	l, err := d.link()
	if err != nil {
		return // The TUN is being deleted; a thread that reads it reports that.
	}
	d.mtu.Store(int64(l.MTU))
	switch {
	case l.Up && !d.mu.up:
		if err := d.setUp(now); err != nil {
			d.log.Warn("sockets cannot be opened, trying again", "port", d.mu.port, "err", err)
			d.mu.nextWalk = now + time.Second
		}
	case !l.Up && d.mu.up:
		d.setDown()
	}
}

// bind opens sockets on a port and makes the threads use them instead of the old ones.
func (d *Device) bind(port uint16) error {
	v4, v6, actual, err := sock.Open(port, d.mu.mark)
	if err != nil {
		return err
	}
	d.exchange(&binding{v4, v6})
	d.mu.port = actual
	return nil
}

// exchange makes the threads use the sockets of fresh, and closes the old ones. If fresh is nil,
// the threads have no sockets.
func (d *Device) exchange(fresh *binding) {
	d.stopReceiving()
	d.state.Lock()
	old := d.state.bound
	d.state.bound = fresh
	d.state.Unlock()
	if old != nil {
		old.close()
	}
	if fresh != nil {
		for _, s := range d.shards {
			s.rx.start(fresh)
		}
	}
}

// setUp opens the sockets and greets the peers.
func (d *Device) setUp(now time.Duration) error {
	if d.mu.up {
		return nil
	}
	if err := d.bind(d.mu.port); err != nil {
		return err
	}
	d.mu.up = true
	d.greetAll(now)
	return nil
}

// setDown closes the sockets and ends all sessions.
func (d *Device) setDown() {
	d.mu.up = false
	d.exchange(nil)
	d.state.Lock()
	for _, p := range d.mu.order {
		d.changeSessionsLocked(p, over, nil, 0)
	}
	d.state.Unlock()
	d.zeroRetired()
	for _, p := range d.mu.order {
		d.forgetInitiation(p)
		p.timers = timers{}
		p.wanted = false
		p.unanswered.Store(0)
		p.owed.Store(0)
		d.dropStaged(p)
	}
}
