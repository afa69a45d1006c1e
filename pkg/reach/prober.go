package reach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// every is the interval of echoes.
const every = time.Second

// errForbidden means that this process may not open a socket for echoes. An echo that a firewall or
// a full table of connections refuses does not mean that.
var errForbidden = errors.New("echoes are forbidden")

// Peer is a node that is probed through one tunnel device.
type Peer struct {
	// Name is the name of the node.
	Name   string
	Device string
	// Addr is an address of the node that is among its allowed IPs.
	Addr netip.Addr
}

// Config holds the dependencies of a Prober.
type Config struct {
	// Sources are this node's own addresses. The first of each family is used.
	Sources []netip.Addr
	// Read reads the counters of tunnels. It is called before Heard, at most once per second while
	// a peer does not answer.
	Read func(ctx context.Context)
	// Heard returns when an authentic packet of a peer was last noticed. Zero means never. It must
	// not block.
	Heard func(p Peer) time.Time
	// Changed is called when the result of Dead or Problem has changed, at most once per second. It
	// must not block.
	Changed func()
	Log     *slog.Logger
}

// Prober probes peers. Make it with New, and call Run once. Other methods may be called at any time
// from any goroutine.
type Prober struct {
	o Config

	mu      sync.Mutex
	targets map[Peer]*target
	sockets map[socketID]*net.UDPConn
	failed  string // the last error of a socket, which was logged
	// forbidden is the error of the last tick in which a socket was not permitted, or nil.
	forbidden error
	// changed reports whether the result of Dead or Problem has changed since Changed was called.
	changed bool
	readers sync.WaitGroup
}

// socketID names a socket. There is one per device and address family.
type socketID struct {
	device string
	six    bool
}

// New returns a Prober without peers.
func New(o Config) *Prober {
	return &Prober{o: o, targets: map[Peer]*target{}, sockets: map[socketID]*net.UDPConn{}}
}

// SetPeers replaces the peers. What is known about unchanged peers stays.
func (p *Prober) SetPeers(peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[Peer]*target, len(peers))
	for _, peer := range peers {
		if next[peer] = p.targets[peer]; next[peer] == nil {
			next[peer] = &target{Peer: peer}
		}
	}
	p.targets = next
}

// Dead returns the names of the peers that do not answer, sorted.
func (p *Prober) Dead() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if t.dead {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Problem returns the reason why peers cannot be probed, or nil. They do not count as dead then.
func (p *Prober) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forbidden
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	defer p.readers.Wait()
	defer p.closeSockets()
	return poll.Each(ctx, every, func(time.Time) { p.tick(ctx) })
}

// tick judges the peers that did not answer the last echo, and sends another to each peer.
func (p *Prober) tick(ctx context.Context) {
	if missed := p.sendAll(); len(missed) > 0 {
		p.o.Read(ctx)
		p.judge(missed)
	}
	p.mu.Lock()
	changed := p.changed
	p.changed = false
	p.mu.Unlock()
	if changed {
		p.o.Changed()
	}
}

// sendAll sends an echo to each peer, and returns those that did not answer the last one. A peer
// for which this process may not open a socket is alive.
func (p *Prober) sendAll() (missed []*target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := map[socketID]bool{}
	var forbidden error
	for _, t := range p.targets {
		id := socketID{t.Device, t.Addr.Is6()}
		used[id] = true
		late := t.next()
		if err := p.sendLocked(id, t); errors.Is(err, errForbidden) {
			forbidden = err
			p.changed = p.changed || t.dead
			t.untested()
			continue
		}
		if late {
			missed = append(missed, t)
		}
	}
	for id, c := range p.sockets {
		if !used[id] {
			c.Close()
			delete(p.sockets, id)
		}
	}

	p.changed = p.changed || (forbidden == nil) != (p.forbidden == nil)
	p.forbidden = forbidden
	return missed
}

// judge decides about peers that missed an echo, after the counters were read.
func (p *Prober) judge(missed []*target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, t := range missed {
		was := t.dead
		if t.missed > 0 { // No answer came since.
			t.heard(p.o.Heard(t.Peer), now)
		}
		if t.dead && !was {
			p.o.Log.Warn("a node of another cluster does not answer", "node", t.Name,
				"device", t.Device)
		}
		p.changed = p.changed || t.dead != was
	}
}

// sendLocked sends the next echo of a peer. A socket that fails is opened again with a later echo,
// because its device may have been replaced.
func (p *Prober) sendLocked(id socketID, t *target) error {
	c, err := p.socketLocked(id)
	if err == nil {
		_, err = c.WriteToUDPAddrPort(echo(id.six, t.seq), netip.AddrPortFrom(t.Addr, 0))
		if err != nil {
			c.Close()
			delete(p.sockets, id)
		}
	}
	if err != nil && err.Error() != p.failed {
		p.failed = err.Error()
		p.o.Log.Warn("an echo could not be sent", "device", id.device, "error", err)
	}
	return err
}

func (p *Prober) socketLocked(id socketID) (*net.UDPConn, error) {
	if c := p.sockets[id]; c != nil {
		return c, nil
	}
	i := slices.IndexFunc(p.o.Sources, func(a netip.Addr) bool { return a.Is6() == id.six })
	if i < 0 {
		return nil, fmt.Errorf("echo on %s: this node has no address of the peer's family",
			id.device)
	}
	c, err := openSocket(id.device, p.o.Sources[i])
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: %w", errForbidden, err)
	} else if err != nil {
		return nil, err
	}
	p.sockets[id] = c
	p.readers.Go(func() { p.read(id, c) })
	return c, nil
}

// read handles the answers that arrive at a socket until it is closed.
func (p *Prober) read(id socketID, c *net.UDPConn) {
	buf := make([]byte, 128)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			p.mu.Lock()
			current := p.sockets[id] == c
			p.mu.Unlock()
			if current { // The error comes from an ICMP error.
				continue
			}
			return
		}
		if seq, ok := parse(id.six, buf[:n]); ok {
			p.receive(id.device, from.Addr().Unmap(), seq)
		}
	}
}

// receive records an answer. The next tick reports a change, so nodes that answer in turns cause
// one change per second.
func (p *Prober) receive(device string, from netip.Addr, seq uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if t.Device == device && t.Addr == from {
			was := t.dead
			t.answered(seq)
			p.changed = p.changed || was && !t.dead
		}
	}
}

func (p *Prober) closeSockets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.sockets {
		c.Close()
		delete(p.sockets, id)
	}
}
