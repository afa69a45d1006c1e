package engine

import (
	"errors"
	"fmt"
	"log/slog"
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
	// Tier is the AEAD; nil lets the device choose and prove one.
	Tier *aead.Tier
	Log  *slog.Logger
	// Clock returns the time since boot; nil means CLOCK_BOOTTIME.
	Clock func() time.Duration
}

// Device is a WireGuard device. Its fields are grouped by owner. A group with a lock embeds it, so
// a field names its lock: d.state.routes needs d.state, and d.mu.order needs d.mu. No thread takes
// d.mu; control and configuration take d.state while they hold d.mu.
type Device struct {
	parts
	atomics
	state shared
	mu    owned
	inbox
	life
}

// parts does not change while threads run.
type parts struct {
	log        *slog.Logger
	arena      *secret.Arena
	tier       *aead.Tier
	shards     []*shard
	udpOffload bool
	link       func() (sock.Link, error)
	now        func() time.Duration
	turns      *turns
	paths      *sock.Paths // nil without netlink
}

// atomics needs no lock: threads and control use it at any time.
type atomics struct {
	mtu          atomic.Int64
	drops        drops
	noTCP, noUDP refusal
	stagedBytes  atomic.Int64
}

// shared is what the threads read. A thread holds the lock for reading, for a batch. Control and
// configuration hold it to write; they alone write, so they read without it.
type shared struct {
	sync.RWMutex
	routes   routes
	sessions map[uint32]*session
	bound    *binding // the sockets, nil while the device is down
}

// owned is what control and configuration share. No thread uses it.
type owned struct {
	sync.Mutex
	settings
	walk
	// lastStamp is the latest timestamp of an initiation; see StampsAfter.
	lastStamp, stampsAfter noise.Timestamp
	budget                 budget
	load                   load
	limits                 limiter
	up                     bool // the link is up, and there are sockets
	out                    *outbox
	msg                    message    // the one that is handled
	handled                []*peer    // those with events, of this step
	retired                []*session // of which the keys are zeroed next
	dead                   []*peer    // those that were removed, until bury
}

// settings is what configuration changes.
type settings struct {
	id      *noise.Identity
	checker *noise.Checker
	port    uint16
	mark    uint32
	peers   map[noise.PublicKey]*peer
	order   []*peer // all of peers, in the order of configuration
	// configured is how often configuration changed, see Base.
	configured uint64
}

// walk is the state of control's walks over the peers.
type walk struct {
	nextWalk time.Duration
	turn     int  // where the next walk over order begins
	refused  bool // this walk has found no budget for a peer
	// route returns the link by which datagrams leave for an endpoint. With a nil route, no source
	// is judged.
	route      func(e *sock.Endpoint, mark uint32) (link int32, err error)
	judgements int // of this walk
}

// inbox is what threads and control pass to each other. Each part has its own lock.
type inbox struct {
	ring     ring
	pending  pending
	waiting  exchanges
	changes  changes
	wake     *sock.Waker
	wakeFile *os.File
	awake    atomic.Bool
}

// life is the beginning and the end of the threads.
type life struct {
	closing  atomic.Bool
	halted   atomic.Bool // the sending threads end
	stopping atomic.Bool // the receiving threads end
	gone     chan struct{}
	goneOnce sync.Once
	tx       sync.WaitGroup // the sending threads
	threads  sync.WaitGroup // control
}

// New makes a device and starts its threads. It has no key and no peer yet.
func New(o DeviceConfig) (*Device, error) {
	d, err := build(o)
	if err != nil {
		return nil, err
	}
	d.Start()
	return d, nil
}

// build makes a device without threads.
func build(o DeviceConfig) (*Device, error) {
	d := &Device{parts: parts{log: o.Log, arena: new(secret.Arena), tier: o.Tier,
		udpOffload: o.UDPOffload, link: o.Link, now: o.Clock, turns: newTurns()}}
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

// ChooseTier returns the fastest AEAD that proves right on this CPU.
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

// Start starts the threads of a device that was imported.
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

// halt ends the threads of the shards after their present batch. The caller holds mu and none of
// the threads' locks.
func (d *Device) halt() {
	d.halted.Store(true)
	d.stopping.Store(true)
	// All threads get the signal before one is waited for: each may be at a batch.
	for _, s := range d.shards {
		s.stop.Wake()
		s.rx.stop.Wake()
	}
	d.tx.Wait()
	d.stopReceiving()
}

// stopReceiving ends the receiving threads.
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
		d.log.Warn("routes are not followed: source addresses of peers may not suit them", "err", err)
	} else {
		d.mu.route = d.paths.Link
	}
	// The runtime's poller lets control wait without a thread.
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

// Tier returns the name of the AEAD's implementation.
func (d *Device) Tier() string { return d.tier.Name }

func (d *Device) lostTUN(err error) {
	if d.halted.Load() {
		return
	}
	d.goneOnce.Do(func() {
		d.log.Warn("the TUN cannot be read any more", "err", err)
		close(d.gone)
	})
}

// wakeControl makes control look at the ring and at events.
func (d *Device) wakeControl() {
	if !d.awake.Swap(true) {
		d.wake.Wake()
	}
}

// errClosed is the error of a device that was closed or handed over.
var errClosed = errors.New("the device is closed")

// Close ends the threads and zeroes all keys. It leaves the queues of the TUN open.
func (d *Device) Close() {
	if !d.closing.Swap(true) {
		d.finish()
	}
}

// finish is Close without the check whether the device is closed.
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
