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

// System is the seam to what holds the devices. tunneltest has a fake.
type System interface {
	// Read looks at all links with names of ours.
	Read(ctx context.Context) (State, error)
	// Create makes a device if there is none, adopts it otherwise, and waits
	// until it can be configured.
	Create(ctx context.Context, d Device) error
	// Configure applies one change in one call.
	Configure(ctx context.Context, c DeviceChange) error
	// Remove removes a device with its request and its state.
	Remove(ctx context.Context, name string) error
	// RemoveAll removes every device and request of ours, as much as it can, and
	// says what it took.
	RemoveAll(ctx context.Context) (took []string, err error)
}

// Manager keeps a System at the last Spec. It is safe for concurrent use.
type Manager struct {
	sys System
	now func() time.Time

	mu      sync.Mutex
	claims  map[peerID]netip.AddrPort
	nameFor map[wgkey.Public]string
	// contacts are of the peers that were last read.
	contacts map[peerID]*contact
	// sent is of the last reading.
	sent atomic.Pointer[map[peerName]Sent]
}

type peerID struct {
	device string
	key    wgkey.Public
}

// NewManager gives a Manager that knows nothing yet. A nil now is time.Now.
func NewManager(sys System, now func() time.Time) *Manager {
	if now == nil {
		now = time.Now
	}
	return &Manager{sys: sys, now: now}
}

// Sync makes the devices match want and says what it changed. After an error
// what was done stays; the next Sync does the rest.
func (m *Manager) Sync(ctx context.Context, want Spec) (Changes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := want.Check(); err != nil {
		return Changes{}, err
	}
	have, err := m.readLocked(ctx)
	if err != nil {
		return Changes{}, err
	}
	c := Diff(want, have, m.now())
	created := c.Create
	var errs []error
	for _, d := range created {
		if err := m.sys.Create(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("make tunnel device %s: %w", d.Name, err))
		}
	}
	if len(created) > 0 {
		if have, err = m.readLocked(ctx); err != nil {
			return Changes{Create: created}, errors.Join(append(errs, err)...)
		}
		c = Diff(want, have, m.now())
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
	if len(errs) == 0 {
		m.rememberLocked(want)
	}
	return c, errors.Join(errs...)
}

// Status is the present State with the names of the peers and what is known of
// them. Contact is as good as Status is called often: once in WatchEvery at least.
func (m *Manager) Status(ctx context.Context) (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readLocked(ctx)
}

// RemoveAll removes every device and request of ours and says what it took.
func (m *Manager) RemoveAll(ctx context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims, m.nameFor = nil, nil
	return m.sys.RemoveAll(ctx)
}

func (m *Manager) readLocked(ctx context.Context) (State, error) {
	st, err := m.sys.Read(ctx)
	if err != nil {
		return State{}, fmt.Errorf("read tunnel devices: %w", err)
	}
	for _, d := range st.Devices {
		for i := range d.Peers {
			p := &d.Peers[i]
			p.Name = m.nameFor[p.PublicKey]
			p.Claimed = m.claims[peerID{d.Name, p.PublicKey}]
		}
	}
	m.observeLocked(st)
	return st, nil
}

// WatchEvery is how often the counters of peers are to be read.
const WatchEvery = 5 * time.Second

func (m *Manager) rememberLocked(want Spec) {
	m.claims, m.nameFor = map[peerID]netip.AddrPort{}, map[wgkey.Public]string{}
	for _, d := range want.Devices {
		for _, p := range d.Peers {
			m.claims[peerID{d.Name, p.PublicKey}] = p.Endpoint
			m.nameFor[p.PublicKey] = p.Name
		}
	}
}
