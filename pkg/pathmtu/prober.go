package pathmtu

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Peer is a node that is probed through one tunnel device.
type Peer struct {
	// Name is the name of the node. Name and Device together identify the peer.
	Name   string
	Device string
	// Addr is an address of the node that is among its allowed IPs.
	Addr netip.Addr
	// DeviceMTU is the MTU of Device in bytes, which is the largest size that is tried.
	DeviceMTU int
}

// ProberConfig holds the settings of a Prober. The zero value of Timing and Timeout is replaced by
// defaults.
type ProberConfig struct {
	// Sources are this node's own addresses. The first of each family is used.
	Sources []netip.Addr
	// Port is the UDP port; 0 means abi.ProbePort.
	Port uint16
	// Timing sets the pace. By default, the size is checked every minute, and three probes of a
	// size must be lost. After the size was lowered, the full size is tried after 10 s, then after
	// twice that, and so on, up to every ten minutes.
	Timing Timing
	// Timeout is the wait for an answer after which the next probe is sent; 0 means 300 ms. It
	// doubles with each answer that comes later, up to ten times its value.
	Timeout time.Duration
	// Believed are sizes that an earlier Prober found, by the name of the peer. The first search of
	// such a peer begins with that size and then tries the full size.
	Believed map[string]int
	// Found is called when the largest size that a path carries inside the tunnel changes. The
	// first result is reported only if it differs from the size in Believed, or from DeviceMTU if
	// Believed has none. Found must not block. Nil is allowed.
	Found func(peer Peer, mtu int)
	// Broken is called when the path to a peer loses segmented datagrams and carries single ones.
	// It must not block. Nil disables the bursts.
	Broken func(peer Peer)
	// Traffic returns the traffic to a peer. ok is false if it is not known yet; the peer is then
	// not probed. Traffic must not block. If it is nil, all peers are probed, also with bursts.
	Traffic func(peer Peer) (t Traffic, ok bool)
	Log     *slog.Logger
}

// Prober probes peers and answers their probes.
type Prober struct {
	o ProberConfig

	mu      sync.Mutex
	peers   map[peerID]*target
	byAddr  map[addrID]*target
	sockets map[socketID]*socket
	looked  time.Time // when the sockets were last compared with the devices
	// silent is the silent peer that has waited longest for a search, in this turn. knock is when one
	// may begin.
	silent *target
	knock  time.Time
	// believed is the unused rest of ProberConfig.Believed.
	believed map[string]int
	changed  chan struct{}
	readers  sync.WaitGroup
}

type peerID struct{ name, device string }

type addrID struct {
	device string
	addr   netip.Addr
}

// target is a peer with its search and the probe under way.
type target struct {
	Peer
	search   *Search
	told     int    // the size that was last reported, or the initial one
	nonce    uint64 // of the probe under way; 0 means none
	deadline time.Time
	timeout  time.Duration
	sent     []message // the probes since the search was last idle, at most maxSent
	demand   demand
	probing  bool // a probe was sent since the search was last seen idle

	segments      bool // Traffic allowed segments when the check began
	burst         burst
	burstNonce    uint64 // of the burst or single probe under way; 0 means none
	burstDeadline time.Time
}

// New returns a Prober without peers.
func New(o ProberConfig) *Prober {
	o.Port = cmp.Or(o.Port, abi.ProbePort)
	o.Timeout = cmp.Or(o.Timeout, 300*time.Millisecond)
	if o.Timing == (Timing{}) {
		o.Timing = Timing{Interval: time.Minute, RaiseMin: 10 * time.Second,
			RaiseInterval: 10 * time.Minute, RetryMin: 2 * time.Second, Tries: 3}
	}
	return &Prober{o: o, peers: map[peerID]*target{}, sockets: map[socketID]*socket{},
		believed: maps.Clone(o.Believed), changed: make(chan struct{}, 1)}
}

// spread is the pause between the first probes of new peers.
const spread = 2 * time.Millisecond

// SetPeers replaces the peers. Results for unchanged peers stay.
func (p *Prober) SetPeers(peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	next := make(map[peerID]*target, len(peers))
	p.byAddr = make(map[addrID]*target, len(peers))
	p.looked = time.Time{}

	for _, peer := range peers {
		id := peerID{peer.Name, peer.Device}
		if old, ok := p.peers[id]; ok && old.Peer == peer {
			next[id], p.byAddr[addrID{peer.Device, peer.Addr}] = old, old
			continue
		}

		floor := cluster.MinMTU4 // the peer may have no IPv6 inside the tunnel
		if peer.Addr.Is6() {
			floor = abi.MinPodMTU6
		}

		t := &target{Peer: peer, burst: burst{timing: p.o.Timing}, timeout: p.o.Timeout,
			search: NewSearch(floor, peer.DeviceMTU, p.o.Timing, now), told: peer.DeviceMTU}
		if size, ok := p.believed[peer.Name]; ok && size < peer.DeviceMTU {
			t.search.Believe(size)
			t.told = t.search.MTU()
			delete(p.believed, peer.Name)
		}

		if old, ok := p.peers[id]; ok {
			t.told = old.told
		}

		now = now.Add(spread)
		next[id], p.byAddr[addrID{peer.Device, peer.Addr}] = t, t
	}

	p.peers = next
	p.wake()
}

// maxPause bounds the sleep of the loop. After that time, it notices sockets whose device was
// replaced.
const maxPause = 2 * time.Second

// minPause is the shortest time between two passes over all peers, which bounds the cost of a
// thousand peers that answer one by one.
const minPause = 50 * time.Millisecond

// knockPause is the least time between two searches of silent peers, over all of them. Each makes
// WireGuard send 19 initiations in 90 s.
const knockPause = maxPause

// Run probes until ctx ends. It returns ctx's error.
func (p *Prober) Run(ctx context.Context) error {
	defer p.readers.Wait()
	defer p.closeSockets()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.changed:
			timer.Reset(max(time.Until(looked.Add(minPause)), 0))
			continue
		case <-timer.C:
		}
		looked = time.Now()
		p.openSockets(ctx, looked)
		timer.Reset(p.turn(looked))
	}
}

// turn sends the probes that are due and returns the time until the next one is due.
func (p *Prober) turn(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := maxPause
	for _, t := range p.peers {
		if t.nonce != 0 && !now.Before(t.deadline) {
			t.nonce = 0
			t.search.Lost(now)
		}

		if t.nonce == 0 && p.wanted(t, now) {
			p.probe(t, now)
		}

		p.tell(t)
		pause = min(pause, p.turnBurst(t, now))
		due := t.search.Next()
		if t.nonce != 0 {
			due = t.deadline
		} else if !now.Before(due) {
			due = now.Add(maxPause) // the peer waits for traffic
		}
		pause = min(pause, due.Sub(now))
	}
	if t := p.silent; t != nil && !now.Before(p.knock) {
		p.knock = now.Add(knockPause)
		t.search.Doubt()
		p.probe(t, now)
	}
	p.silent = nil
	return max(pause, minPause)
}

// wanted reports whether to send a probe of a search. A search that is under way continues. An idle
// search begins when it is due and the peer has traffic. If the peer is silent, turn may begin it.
// When a search has ended, wanted begins the burst, if the peer answers.
func (p *Prober) wanted(t *target, now time.Time) bool {
	if !t.search.Idle() {
		return true
	}
	if t.probing {
		t.probing = false
		t.demand.probed(now)
		if t.segments && p.o.Broken != nil && t.search.Answers() {
			t.burst.begin(now)
		}
	}
	if now.Before(t.search.Next()) {
		return false
	}
	if p.o.Traffic == nil {
		t.segments = true
		return true
	}

	traffic, ok := p.o.Traffic(t.Peer)
	t.segments = traffic.Segments
	if ok && traffic.Silent {
		if p.silent == nil || t.search.Next().Before(p.silent.search.Next()) {
			p.silent = t
		}
		return false
	}
	// A peer without IPv6 may get too little traffic to make a probe due.
	return ok && (t.demand.due(traffic) || t.search.MTU() < min(abi.MinPodMTU6, t.DeviceMTU))
}

func (p *Prober) tell(t *target) {
	if mtu := t.search.MTU(); mtu != t.told {
		t.told = mtu
		p.o.Log.Info("path mtu changed", "peer", t.Name, "device", t.Device, "mtu", mtu,
			"device_mtu", t.DeviceMTU)
		if p.o.Found != nil {
			p.o.Found(t.Peer, mtu)
		}
	}
}

// openSockets opens a socket for each device and family with a peer, and closes the sockets of
// other devices.
func (p *Prober) openSockets(ctx context.Context, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.looked) < maxPause {
		return
	}

	p.looked = now
	wanted := map[socketID]bool{}
	for _, t := range p.peers {
		wanted[socketID{t.Device, t.Addr.Is6()}] = true
	}

	for id, s := range p.sockets {
		if !wanted[id] || !s.alive(id.device) {
			s.conn.Close()
			delete(p.sockets, id)
		}
	}

	for id := range wanted {
		if p.sockets[id] != nil {
			continue
		}
		s, err := p.openSocket(ctx, id)
		if err != nil {
			p.o.Log.Debug("no probe socket yet", "device", id.device, "err", err)
			continue
		}
		p.sockets[id] = s
		p.readers.Go(func() { p.read(id, s) })
	}
}

func (p *Prober) openSocket(ctx context.Context, id socketID) (*socket, error) {
	for _, source := range p.o.Sources {
		if source.Is6() == id.v6 {
			return openSocket(ctx, id.device, source, p.o.Port)
		}
	}
	return nil, fmt.Errorf("open probe socket on %s: this node has no address of the peer's family",
		id.device)
}

func (p *Prober) closeSockets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.sockets {
		s.conn.Close()
		delete(p.sockets, id)
	}
}

// read handles the messages that arrive at a socket until the socket is closed.
func (p *Prober) read(id socketID, s *socket) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			if p.current(id, s) {
				continue
			}
			return
		}
		m, err := parse(buf[:n])
		if err != nil || from.Port() != p.o.Port {
			continue
		}
		if answer := p.receive(id, from.Addr(), m, n, time.Now()); answer != nil {
			_, _ = s.conn.WriteToUDPAddrPort(answer, from)
		}
	}
}

// current reports whether s is still in use. If it is, a read error of s comes from an ICMP error,
// and reading goes on.
func (p *Prober) current(id socketID, s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sockets[id] == s
}

// receive judges a message of n bytes and returns the answer to send, if any.
func (p *Prober) receive(id socketID, from netip.Addr, m message, n int, now time.Time) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.byAddr[addrID{id.device, from}]

	switch {
	case t == nil:
	case m.kind == kindProbe && n == max(m.size-headers(from), messageLen):
		return message{kindAnswer, m.nonce, m.size}.put(messageLen)
	case m.kind == kindAnswer && t.burstNonce != 0 && m.nonce == t.burstNonce:
		t.burstNonce = 0
		t.demand.probed(now)
		if t.burst.answered(now) {
			p.o.Log.Warn("the path loses segmented datagrams and carries single ones", "peer", t.Name,
				"device", t.Device)
			p.o.Broken(t.Peer)
		}
		p.wake()
	case m.kind == kindAnswer && t.nonce != 0 && m.nonce == t.nonce && m.size == t.search.size:
		t.nonce = 0
		t.search.Answered(now)
		p.wake()
	case m.kind == kindAnswer && slices.Contains(t.sent, message{kindProbe, m.nonce, m.size}):
		t.timeout = min(2*t.timeout, 10*p.o.Timeout)
		if t.search.AnsweredLate(m.size, now) {
			t.nonce = 0
			p.wake()
		}
	}
	return nil
}

func (p *Prober) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
