package engine

import (
	"time"

	"github.com/kubeveil/kubeveil/internal/memtest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// WalkInterval is how often control walks over the peers.
const WalkInterval = walkInterval

// LastWalk wakes control and returns the time of its last walk over the peers, by the device's
// clock.
func (d *Device) LastWalk() time.Duration {
	d.wakeControl()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.nextWalk - walkInterval
}

// StagedBytes returns how many bytes wait for sessions.
func (d *Device) StagedBytes() int64 { return d.stagedBytes.Load() }

// Sessions returns the sum of the indexes of all sessions, which changes when a session begins or
// ends. It returns 0 if there are none.
func (d *Device) Sessions() (sum uint64) {
	d.state.RLock()
	defer d.state.RUnlock()
	for i := range d.state.sessions {
		sum += uint64(i)
	}
	return sum
}

// SessionKeys returns covered copies of the keys of all sessions.
func (d *Device) SessionKeys() (out [][]byte) {
	d.state.RLock()
	defer d.state.RUnlock()
	for _, s := range d.state.sessions {
		out = append(out, memtest.Covered(s.keys.Send[:]), memtest.Covered(s.keys.Receive[:]))
	}
	return out
}

// IsUp reports whether the device has sockets.
func (d *Device) IsUp() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.up
}

// SetRoute makes the device call f for the link by which datagrams to an endpoint leave.
func (d *Device) SetRoute(f func(e *sock.Endpoint, mark uint32) (link int32, err error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.route = f
}

// ChangePaths makes the device look at the paths that changed.
func (d *Device) ChangePaths(c ...sock.Change) { d.changes.add(c...) }

// Endpoint returns the endpoint of a peer.
func (d *Device) Endpoint(peer noise.PublicKey) sock.Endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *d.mu.peers[peer].endpoint.Load()
}

// RefuseSuperpackets makes the device believe that the TUN refused superpackets.
func (d *Device) RefuseSuperpackets() {
	d.noTCP.off.Store(true)
	d.noUDP.off.Store(true)
}

// SocketFD returns the descriptor of the IPv4 socket.
func (d *Device) SocketFD() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.bound.v4.FD
}
