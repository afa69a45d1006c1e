package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// System reads and changes the devices of this node. Package tunneltest has a fake.
type System interface {
	// Read reads all links with our names.
	Read(ctx context.Context) (LiveState, error)
	// Create makes a missing device, adopts an existing one, and waits until it can be configured.
	Create(ctx context.Context, d Device) error
	// Configure applies one change in one call.
	Configure(ctx context.Context, c DeviceChange) error
	// Remove removes a device with its request and its state.
	Remove(ctx context.Context, name string) error
	// SendSingly makes a device send datagrams to a peer one by one.
	SendSingly(ctx context.Context, device string, peer wgkey.Public) error
}

// Manager keeps the devices of a System equal to the last Spec. It is safe for concurrent use.
//
// A Manager remembers the last reading of the devices and its changes since, so that a change is
// cheap. Sync compares the Spec with that memory, and reads the devices only if the memory is
// empty. To change one of a thousand peers, it neither reads the others nor waits for another
// reader.
type Manager struct {
	sys System
	now func() time.Time

	syncing sync.Mutex // held while devices are changed; locked before reading and mu
	reading sync.Mutex // held while devices are read; locked before mu

	mu sync.Mutex // guards the fields below; never held during a call of sys
	// have is the last reading of the devices with the changes of Sync since. If it is nil, the
	// next Sync reads the devices. The LiveState that it points to never changes.
	have *LiveState
	// want is the Spec of the last Sync if that succeeded, else nil.
	want *Spec
	// settled reports whether have was compared with want, and matches it.
	settled bool
	// writes counts the ends of Sync. If it changes during a reading, the reading is older than
	// have.
	writes uint64
	// claims holds the claimed endpoints of the last Spec, nameFor the nodes' names by public key.
	claims  map[peerID]netip.AddrPort
	nameFor map[wgkey.Public]string
	// contacts are the contacts of the peers in the last reading.
	contacts map[peerID]*contact
	// sent is the Sent of each peer in the last reading.
	sent atomic.Pointer[map[peerName]Sent]

	// owned is the state that Sync changes in place. It is used only while syncing is held.
	owned *owned
}

type peerID struct {
	device string
	key    wgkey.Public
}

// NewManager returns a Manager that has not read the devices yet. A nil now means time.Now.
func NewManager(sys System, now func() time.Time) *Manager {
	if now == nil {
		now = time.Now
	}
	return &Manager{sys: sys, now: now}
}

// Sync makes the devices match want and returns what it changed. It reads them on the first call,
// after Forget, and after a failed Sync. After an error the completed changes stay, and the next
// Sync does the rest. Sync keeps want, which the caller must not change.
func (m *Manager) Sync(ctx context.Context, want Spec) (Changes, error) {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	if c, done, err := m.syncPart(ctx, want); done {
		return c, err
	}
	if err := want.Check(); err != nil {
		return Changes{}, err
	}
	have, now, err := m.known(ctx)
	if err != nil {
		return Changes{}, err
	}

	c := Diff(want, have, now)
	created := c.Create
	var errs []error
	for _, d := range created {
		if err := m.sys.Create(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("make tunnel device %s: %w", d.Name, err))
		}
	}

	if len(created) > 0 {
		m.Forget()
		if have, now, err = m.known(ctx); err != nil {
			return Changes{Create: created}, errors.Join(append(errs, err)...)
		}
		c = Diff(want, have, now)
		c.Create = created
	}

	for _, dc := range c.Configure {
		if err := m.sys.Configure(ctx, dc); err != nil {
			errs = append(errs, fmt.Errorf("configure tunnel device %s: %w", dc.Name, err))
		}
	}

	for _, name := range c.Remove {
		if err := m.sys.Remove(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("remove tunnel device %s: %w", name, err))
		}
	}

	m.remember(want, have, c, len(errs) == 0)
	return c, errors.Join(errs...)
}

// known returns the remembered state of the devices. If there is none, it reads them. now is the
// time for Diff. It is zero for a remembered state, whose handshakes may be outdated.
func (m *Manager) known(ctx context.Context) (have LiveState, now time.Time, err error) {
	m.mu.Lock()
	known := m.have
	m.mu.Unlock()
	if known != nil {
		return *known, time.Time{}, nil
	}
	have, _, err = m.read(ctx)
	return have, m.now(), err
}

// remember stores the state after a Sync. If the Sync was not whole, it forgets the state.
func (m *Manager) remember(want Spec, have LiveState, c Changes, whole bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	m.have, m.want, m.settled = nil, nil, false
	if !whole {
		return
	}
	after := have.after(want, c)
	m.have, m.want, m.settled = &after, &want, true
	m.claims, m.nameFor = map[peerID]netip.AddrPort{}, map[wgkey.Public]string{}
	for _, d := range want.Devices {
		for _, p := range d.Peers {
			m.claims[peerID{d.Name, p.PublicKey}] = p.Endpoint
			m.nameFor[p.PublicKey] = p.Name
		}
	}
}

// Forget makes the next Sync read the devices. Call it when another program may have changed them.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.have = nil
}

// Status returns the present LiveState with the names and contacts of the peers. Contact is
// accurate if Status is called at least every WatchEvery.
func (m *Manager) Status(ctx context.Context) (LiveState, error) {
	st, _, err := m.read(ctx)
	return st, err
}

// Watch reads the devices, like Status, and reports whether they differ from the last Spec. The
// kernel has no notification for such changes. If they differ, the next Sync reads and corrects
// them. Watch compares all peers with the Spec only if more than the counters changed since the
// last reading.
func (m *Manager) Watch(ctx context.Context) (differs bool, err error) {
	m.reading.Lock()
	defer m.reading.Unlock()
	st, current, err := m.readLocked(ctx)
	if err != nil || !current {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == nil || m.settled {
		// A Sync since the reading has settled its own state.
		return false, nil
	}
	if differs = !Diff(*m.want, st, m.now()).Empty(); differs {
		m.have = nil
	}
	m.settled = m.have != nil
	return differs, nil
}

// read reads the devices. current reports whether no Sync ended during the reading. If so, read
// stores the result as have. It stays settled if nothing but the counters changed.
func (m *Manager) read(ctx context.Context) (st LiveState, current bool, err error) {
	m.reading.Lock()
	defer m.reading.Unlock()
	return m.readLocked(ctx)
}

func (m *Manager) readLocked(ctx context.Context) (st LiveState, current bool, err error) {
	m.mu.Lock()
	writes := m.writes
	m.mu.Unlock()
	if st, err = m.sys.Read(ctx); err != nil {
		return LiveState{}, false, fmt.Errorf("read tunnel devices: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range st.Devices {
		for i := range d.Peers {
			p := &d.Peers[i]
			p.Name = m.nameFor[p.PublicKey]
			p.Claimed = m.claims[peerID{d.Name, p.PublicKey}]
		}
	}
	m.observeLocked(st)
	if current = m.writes == writes; current {
		m.settled = m.settled && m.have != nil && st.sameAs(*m.have)
		m.have = &st
	}
	return st, current, nil
}

// SendSingly makes a device send datagrams to a node one by one.
func (m *Manager) SendSingly(ctx context.Context, device, name string) error {
	var errs []error
	for _, key := range m.keysOf(device, name) {
		errs = append(errs, m.sys.SendSingly(ctx, device, key))
	}
	return errors.Join(errs...)
}

// keysOf returns the public keys that a node has on a device in the last Spec.
func (m *Manager) keysOf(device, name string) (out []wgkey.Public) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.claims {
		if id.device == device && m.nameFor[id.key] == name {
			out = append(out, id.key)
		}
	}
	return out
}

// WatchEvery is the interval at which callers must read the counters of peers.
const WatchEvery = 5 * time.Second
