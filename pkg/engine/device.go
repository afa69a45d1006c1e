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

// Options are the parts and settings of a device.
type Options struct {
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

// Device is a WireGuard device.
type Device struct {
	log          *slog.Logger
	arena        *secret.Arena
	tier         *aead.Tier
	shards       []*shard
	udpOffload   bool
	link         func() (sock.Link, error)
	now          func() time.Duration
	mtu          atomic.Int64
	drops        drops
	noTCP, noUDP refusal

	// state is held for reading by the threads, for a batch.
	state    sync.RWMutex
	routes   routes
	sessions map[uint32]*session
	bound    *binding // the sockets, nil while the device is down

	// mu is held by control and by configuration.
	mu      sync.Mutex
	id      *noise.Identity
	checker *noise.Checker
	peers   map[noise.PublicKey]*peer
	order   []*peer // all of peers, in the order of configuration
	// configured is how often configuration changed, see Base.
	configured uint64
	// lastStamp is the latest timestamp of an initiation; see StampsAfter.
	lastStamp, stampsAfter noise.Timestamp
	waiting                exchanges
	port                   uint16
	mark                   uint32
	up                     bool
	out                    *outbox
	// route returns the link by which datagrams leave for an endpoint. With a nil route, no source
	// is judged.
	route      func(e *sock.Endpoint, mark uint32) (link int32, err error)
	judgements int  // of this walk
	turn       int  // where the next walk over order begins
	refused    bool // this walk has found no budget for a peer
	budget     budget
	load       load
	limits     limiter
	msg        message
	handled    []*peer
	retired    []*session
	dead       []*peer
	nextWalk   time.Duration

	paths   *sock.Paths // nil without netlink
	changes changes

	turns       *turns
	ring        ring
	pending     pending
	stagedBytes atomic.Int64
	wake        *sock.Waker
	wakeFile    *os.File
	awake       atomic.Bool
	closing     atomic.Bool
	halted      atomic.Bool // the sending threads end
	stopping    atomic.Bool // the receiving threads end
	gone        chan struct{}
	goneOnce    sync.Once
	tx          sync.WaitGroup // the sending threads
	threads     sync.WaitGroup // control
}

// New makes a device and starts its threads. It has no key and no peer yet.
func New(o Options) (*Device, error) {
	d, err := build(o)
	if err != nil {
		return nil, err
	}
	d.Start()
	return d, nil
}

// build makes a device without threads.
func build(o Options) (*Device, error) {
	d := &Device{log: o.Log, arena: new(secret.Arena), tier: o.Tier, udpOffload: o.UDPOffload,
		link: o.Link, now: o.Clock,
		sessions: map[uint32]*session{}, peers: map[noise.PublicKey]*peer{},
		gone: make(chan struct{}), turns: newTurns()}
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
	for _, p := range d.order {
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
		if d.bound != nil {
			s.rx.start(d.bound)
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

func (d *Device) prepare(o Options) (err error) {
	if d.id, err = noise.NewIdentity(d.arena); err != nil {
		return err
	}
	d.checker = noise.NewChecker(d.id.Public)

	if d.out, err = newOutbox(d); err != nil {
		return err
	}
	if d.wake, err = sock.NewWaker(); err != nil {
		return err
	}
	if d.paths, err = sock.NewPaths(); err != nil {
		d.log.Warn("routes are not followed: source addresses of peers may not suit them", "err", err)
	} else {
		d.route = d.paths.Link
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
	d.out.close()
	d.paths.Close()
	d.wakeFile.Close()
	if err := d.arena.Close(); err != nil {
		d.log.Warn("memory of keys was not given back", "err", err)
	}
}

// bind opens sockets on a port, and hands them to the threads in place of the former ones.
func (d *Device) bind(port uint16) error {
	v4, v6, actual, err := sock.Open(port, d.mark)
	if err != nil {
		return err
	}
	d.exchange(&binding{v4, v6})
	d.port = actual
	return nil
}

// exchange hands the threads other sockets and closes the former ones. With nil the threads have no
// sockets.
func (d *Device) exchange(fresh *binding) {
	d.stopReceiving()
	d.state.Lock()
	old := d.bound
	d.bound = fresh
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
	if d.up {
		return nil
	}
	if err := d.bind(d.port); err != nil {
		return err
	}
	d.up = true
	d.greetAll(now)
	return nil
}

// setDown closes the sockets and ends all sessions.
func (d *Device) setDown() {
	d.up = false
	d.exchange(nil)
	d.state.Lock()
	for _, p := range d.order {
		d.endSessions(p)
	}
	d.state.Unlock()
	d.zeroRetired()
	for _, p := range d.order {
		d.forgetInitiation(p)
		p.timers = timers{}
		p.wanted = false
		p.unanswered.Store(0)
		p.owed.Store(0)
		d.dropStaged(p)
	}
}

// endSessions takes the sessions of a peer from the threads. The caller holds state for writing,
// and calls zeroRetired after it has released it.
func (d *Device) endSessions(p *peer) {
	d.retire(p.current)
	d.retire(p.next)
	for i, s := range p.former {
		d.retire(s)
		p.former[i] = nil
	}
	p.current, p.next = nil, nil
}

// retire takes a session from the threads, as endSessions does. A nil session is allowed.
func (d *Device) retire(s *session) {
	if s != nil {
		delete(d.sessions, s.local)
		d.retired = append(d.retired, s)
	}
}

// shelve keeps a session, which may be nil, for receiving only. If there are too many, the oldest
// is retired.
func (d *Device) shelve(p *peer, s *session) {
	if s == nil {
		return
	}
	d.retire(p.former[0])
	copy(p.former[:], p.former[1:])
	p.former[maxFormer-1] = s
}

// zeroRetired zeroes the keys of sessions that no thread can reach.
func (d *Device) zeroRetired() {
	for i, s := range d.retired {
		secret.Free(d.arena, s.keys)
		s.keys = nil
		d.retired[i] = nil
	}
	d.retired = d.retired[:0]
}
