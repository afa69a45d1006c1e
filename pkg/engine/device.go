package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// DeviceConfig holds the parts and settings of a device.
type DeviceConfig struct {
	// Queues are the queues of the TUN, one per shard. The caller closes them after Device.Close.
	Queues []*sock.Queue
	// UDPOffload reports whether the TUN takes and returns superpackets of UDP.
	UDPOffload bool
	// Link returns the state of the TUN's link. While it is down the device has no sockets and no
	// sessions.
	Link func() (sock.Link, error)
	// Tier is the AEAD implementation; nil means the one that ChooseTier returns.
	Tier *aead.Tier
	Log  *slog.Logger
	// Clock returns the time since boot; nil means CLOCK_BOOTTIME.
	Clock func() time.Duration
}

// Device is a WireGuard device. Its fields are grouped by owner. A group that has a lock embeds it,
// so the path of a field names its lock: d.state.routes needs d.state, and d.mu.order needs d.mu.
// The threads never take d.mu. Control and configuration may take d.state while they hold d.mu.
type Device struct {
	parts
	atomics
	state shared
	mu    owned
	inbox
	life
}

// parts holds the fields that do not change while threads run.
type parts struct {
	log        *slog.Logger
	arena      *secret.Arena
	tier       *aead.Tier
	shards     []*shard
	udpOffload bool
	link       func() (sock.Link, error)
	now        func() time.Duration
	instance   uint64 // random
	turns      *turns
	paths      *sock.Paths // nil without netlink
}

// atomics holds the fields that threads and control use at any time without a lock.
type atomics struct {
	mtu          atomic.Int64
	drops        drops
	noTCP, noUDP refusal
	stagedBytes  atomic.Int64
}

// shared holds the data that the threads read. A thread holds the read lock for a batch. Control
// and configuration hold the write lock to change it. They are the only writers and exclude each
// other by d.mu, so they read without the lock.
type shared struct {
	sync.RWMutex
	routes   routes
	sessions map[uint32]*session
	bound    *binding // the sockets, nil while the device is down
}

// owned holds the data that control and configuration share. No thread uses it.
type owned struct {
	sync.Mutex
	settings
	walk
	// lastStamp is the latest timestamp of an initiation. stampsAfter is the argument of
	// StampsAfter.
	lastStamp, stampsAfter noise.Timestamp
	budget                 budget
	load                   load
	limits                 limiter
	up                     bool // the link is up, and there are sockets
	out                    *outbox
	msg                    message    // the handshake message in work
	handled                []*peer    // the peers with events, of this step
	retired                []*session // ended sessions whose keys zeroRetired zeroes
	dead                   []*peer    // removed peers, until bury
}

// settings holds the data that configuration changes.
type settings struct {
	id      *noise.Identity
	checker *noise.Checker
	port    uint16
	mark    uint32
	peers   map[noise.PublicKey]*peer
	order   []*peer // all of peers, in the order of configuration
	// configured counts the changes of the configuration; see Base. looks counts the calls of
	// Changed.
	configured, looks uint64
}

// walk is the state of control's walks over the peers.
type walk struct {
	nextWalk time.Duration
	turn     int  // the index in order at which the next walk begins
	refused  bool // this walk had no budget for a peer
	// route returns the index of the link through which datagrams to an endpoint leave. If route is
	// nil, judge does nothing.
	route      func(e *sock.Endpoint, mark uint32) (link int32, err error)
	judgements int // calls of route in this walk
}

// inbox holds what threads and control pass to each other. Each field has its own lock, or is
// atomic.
type inbox struct {
	ring     ring
	pending  pending
	waiting  exchanges
	changes  changes
	wake     *sock.Waker
	wakeFile *os.File
	awake    atomic.Bool
}

// life holds the state of starting and stopping the threads.
type life struct {
	closing  atomic.Bool
	halted   atomic.Bool // the sending threads must end
	stopping atomic.Bool // the receiving threads must end
	gone     chan struct{}
	goneOnce sync.Once
	tx       sync.WaitGroup // the sending threads
	threads  sync.WaitGroup // control and followPaths
}

// New returns a running device without a key and without peers.
func New(o DeviceConfig) (*Device, error) {
	d, err := build(o)
	if err != nil {
		return nil, err
	}
	d.Start()
	return d, nil
}

// build returns a device whose threads do not run yet.
func build(o DeviceConfig) (*Device, error) {
	d := &Device{parts: parts{log: o.Log, arena: new(secret.Arena), tier: o.Tier,
		udpOffload: o.UDPOffload, link: o.Link, now: o.Clock, instance: rand.Uint64(),
		turns: newTurns()}}
	d.state.sessions, d.mu.peers = map[uint32]*session{}, map[noise.PublicKey]*peer{}
	d.gone = make(chan struct{})
	if d.now == nil {
		d.now = bootTime
	}

	if d.tier == nil {
		tier, err := ChooseTier(o.Log)
		if err != nil {
			return nil, err
		}
		d.tier = tier
	}

	if err := d.prepare(o); err != nil {
		return nil, errors.Join(err, d.arena.Close())
	}
	return d, nil
}

// ChooseTier returns the fastest AEAD implementation that agrees with the reference on this CPU.
func ChooseTier(log *slog.Logger) (*aead.Tier, error) {
	tier, err := aead.Choose()
	if tier == nil {
		return nil, fmt.Errorf("choose AEAD: %w", err)
	}
	if err != nil {
		log.Warn("a faster AEAD is not used: it differs from the reference", "used", tier.Name,
			"err", err)
	}
	return tier, nil
}

// Start starts the threads of a device that Prepare returned, after Import.
func (d *Device) Start() {
	for _, p := range d.mu.order {
		p.unjudged.Store(true)
		if p.events.Load() != 0 {
			d.pending.peers = append(d.pending.peers, p)
		}
	}

	d.run()
	d.threads.Go(d.control)
	if d.paths != nil {
		d.threads.Go(d.followPaths)
	}
	d.log.Info("engine ready", "aead", d.tier.Name, "shards", len(d.shards),
		"udp_offload", d.udpOffload)
	if !d.arena.Locked() {
		d.log.Warn("keys are not locked in memory: give the process CAP_IPC_LOCK or a greater " +
			"RLIMIT_MEMLOCK")
	}
}

// run starts the threads of the shards.
func (d *Device) run() {
	d.halted.Store(false)
	for _, s := range d.shards {
		if d.state.bound != nil {
			s.rx.start(d.state.bound)
		}
		s.stop.Clear()
		d.tx.Go(s.runTX)
	}
}

// halt ends the threads of the shards after their current batch, and waits for them. The caller
// holds mu, and no lock that the threads take.
func (d *Device) halt() {
	d.halted.Store(true)
	d.stopping.Store(true)
	// Signal all threads before waiting for one, because each may still finish a batch.
	for _, s := range d.shards {
		s.stop.Wake()
		s.rx.stop.Wake()
	}
	d.tx.Wait()
	d.stopReceiving()
}

// stopReceiving ends the receiving threads and waits for them.
func (d *Device) stopReceiving() {
	d.stopping.Store(true)
	for _, s := range d.shards {
		s.rx.stop.Wake()
	}
	for _, s := range d.shards {
		s.rx.end()
	}
	d.stopping.Store(false)
}

// prepare opens what the device needs. After an error the caller closes the arena.
func (d *Device) prepare(o DeviceConfig) (err error) {
	if d.mu.id, err = noise.NewIdentity(d.arena); err != nil {
		return err
	}
	d.mu.checker = noise.NewChecker(d.mu.id.Public)

	if d.mu.out, err = newOutbox(d); err != nil {
		return err
	}
	if d.wake, err = sock.NewWaker(); err != nil {
		return err
	}
	if d.paths, err = sock.NewPaths(); err != nil {
		d.log.Warn("changes of routes cannot be watched, so datagrams may have an old source "+
			"address", "err", err)
	} else {
		d.mu.route = d.paths.Link
	}
	// An os.File uses the runtime's poller, so control waits without blocking a thread.
	d.wakeFile = os.NewFile(uintptr(d.wake.FD), "eventfd")

	for _, q := range o.Queues {
		s, err := newShard(d, q)
		if err != nil {
			return err
		}
		d.shards = append(d.shards, s)
	}
	l, err := d.link()
	d.mtu.Store(int64(l.MTU))
	return err
}

// Wait returns a channel that is closed when the TUN is gone.
func (d *Device) Wait() <-chan struct{} { return d.gone }

// Tier returns the name of the AEAD implementation.
func (d *Device) Tier() string { return d.tier.Name }

// lostTUN closes the channel of Wait, unless the device is halted.
func (d *Device) lostTUN(err error) {
	if d.halted.Load() {
		return
	}
	d.goneOnce.Do(func() {
		d.log.Warn("the TUN cannot be read any more", "err", err)
		close(d.gone)
	})
}

// wakeControl makes control check the ring and the events soon.
func (d *Device) wakeControl() {
	if !d.awake.Swap(true) {
		d.wake.Wake()
	}
}

// errClosed is the error of a device that was closed or handed over.
var errClosed = errors.New("the device is closed")

// Close ends the threads and zeroes all keys. It leaves the queues of the TUN open. A second call
// does nothing.
func (d *Device) Close() {
	if !d.closing.Swap(true) {
		d.finish()
	}
}

// finish does the work of Close. It must run once, after closing was set.
func (d *Device) finish() {
	d.mu.Lock()
	d.halt()
	d.mu.Unlock()
	d.wake.Wake()
	d.paths.Stop()
	d.threads.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setDown()
	for _, s := range d.shards {
		s.close()
	}
	d.mu.out.close()
	d.paths.Close()
	d.wakeFile.Close()
	if err := d.arena.Close(); err != nil {
		d.log.Warn("memory of keys was not given back", "err", err)
	}
}
