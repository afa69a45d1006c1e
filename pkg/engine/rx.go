package engine

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// binding holds the device's sockets. v6 is nil if the host has no IPv6.
type binding struct {
	v4, v6 *sock.UDP
}

// socket returns the socket of the endpoint's family, or nil if there is none.
func (b *binding) socket(ep *sock.Endpoint) *sock.UDP {
	if ep.Addr.Addr().Is4() {
		return b.v4
	}
	return b.v6
}

func (b *binding) close() {
	b.v4.Close()
	b.v6.Close()
}

// receiver is the receiving side of a shard. All receivers share the device's sockets, see turns.
type receiver struct {
	s      *shard
	in     *sock.Receiver
	worker *aead.Worker
	join   *packet.Coalescer
	waiter sock.Waiter
	slice  slice
	stop   *sock.Waker
	ended  chan struct{}
	filter *noise.Filter // changed under Device.state
	second bool          // the next receive is from the IPv6 socket
	batch  uint64        // the number of the current batch, see turns
	turn   bool          // the batch may be delivered

	// The packets of the batch, in groups.
	packets [maxReceived]aead.Packet
	n       int
	groups  [maxReceived]group
	used    int // of groups

	last     *session // the session of the last transport message in this batch
	lastFrom netip.Addr
	lastPeer *peer
}

// maxReceived bounds the packets that are opened before they are delivered.
const maxReceived = 512

// group holds consecutive packets of one session from one endpoint with one ECN field.
type group struct {
	session *session
	from    *sock.Endpoint
	ecn     uint8
	packets []aead.Packet
}

func newReceiver(s *shard) (*receiver, error) {
	in, err := sock.NewReceiver()
	if err != nil {
		return nil, err
	}
	w, err := aead.NewWorker(s.d.arena)
	if err != nil {
		return nil, err
	}
	stop, err := sock.NewWaker()
	if err != nil {
		return nil, err
	}
	r := &receiver{s: s, in: in, worker: w, stop: stop, filter: noise.NewFilter(s.d.mu.id.Public)}
	r.join = packet.NewCoalescer(r.write)
	return r, nil
}

func (r *receiver) close() {
	r.in.Close()
	r.stop.Close()
}

// start starts the thread that receives from the sockets of b.
func (r *receiver) start(b *binding) {
	r.stop.Clear()
	r.ended = make(chan struct{})
	go r.runRX(b)
}

// end waits until the thread has ended. The caller has signalled stop, and holds no lock that the
// thread takes.
func (r *receiver) end() {
	if r.ended == nil {
		return
	}
	<-r.ended
	r.ended = nil
}

// runRX is the thread that forwards packets from the network to the TUN. It ends once stopping is
// set and stop is signalled.
func (r *receiver) runRX(b *binding) {
	secret.LockThread()
	defer close(r.ended)
	fds := []int{r.stop.FD, b.v4.FD}
	if b.v6 != nil {
		fds = append(fds, b.v6.FD)
	}
	r.waiter.Set(fds...)

	d := r.s.d
	d.turns.lead()
	for !d.stopping.Load() {
		msgs := r.receive(b)
		if len(msgs) == 0 {
			r.slice.end()
			r.waiter.Wait()
			continue
		}

		d.state.RLock()
		r.batch, r.turn = d.turns.draw(), false
		more := len(msgs) == cap(msgs) && len(d.shards) > 1
		if more {
			d.turns.follow()
		}
		r.take(msgs, d.now())
		d.turns.done()
		d.state.RUnlock()
		if more {
			d.turns.lead()
		}
	}
	d.turns.follow()
}

// receive returns queued datagrams of one of the two sockets, or nil if neither has any. It makes
// one system call per socket, and alternates between the sockets.
func (r *receiver) receive(b *binding) []sock.Message {
	for range 2 {
		u := b.v4
		if r.second {
			u = b.v6
		}
		r.second = !r.second
		if u == nil {
			continue
		}
		// Errors are ignored: an unconnected socket receives no ICMP errors, and lack of memory is
		// transient.
		if msgs, err := r.in.Receive(u); err == nil && len(msgs) > 0 {
			return msgs
		}
	}
	return nil
}

// take opens the received datagrams, and delivers their packets when it is the batch's turn.
func (r *receiver) take(msgs []sock.Message, now time.Duration) {
	d := r.s.d
	r.last, r.lastPeer = nil, nil
	r.join.NoTCP, r.join.NoUDP = d.noTCP.off.Load(), d.noUDP.off.Load() || !d.udpOffload
	for i := range msgs {
		m := &msgs[i]
		for data := m.Data; len(data) > 0; {
			n := min(m.Size, len(data))
			r.datagram(data[:n], m, now)
			data = data[n:]
		}
	}
	r.deliverAll(now)
	r.join.Flush()
}

// datagram handles one datagram.
func (r *receiver) datagram(b []byte, m *sock.Message, now time.Duration) {
	d := r.s.d
	if len(b) < 4 {
		d.drops.add(shortDatagram, 1)
		return
	}

	kind := binary.LittleEndian.Uint32(b)
	if kind == noise.TypeTransport {
		r.transport(b, m, now)
		return
	}

	r.handshake(kind, b, m, now)
}

// transport adds a transport message to a group of the batch.
func (r *receiver) transport(b []byte, m *sock.Message, now time.Duration) {
	d := r.s.d
	if len(b) < minTransport {
		d.drops.add(shortDatagram, 1)
		return
	}
	index := binary.LittleEndian.Uint32(b[4:])
	s := r.last
	if s == nil || s.local != index {
		if s = d.state.sessions[index]; s == nil {
			d.drops.add(unknownIndex, 1)
			return
		}
		r.last = s
	}
	if s.expired(now) {
		d.drops.add(expiredSession, 1)
		return
	}

	if r.n == maxReceived {
		r.deliverAll(now)
	}
	g := &r.groups[max(r.used-1, 0)]
	if r.used == 0 || len(g.packets) == maxBatch || g.session != s || g.ecn != m.ECN ||
		g.from != &m.From && *g.from != m.From {
		g = &r.groups[r.used]
		*g = group{s, &m.From, m.ECN, r.packets[r.n:r.n]}
		r.used++
	}
	g.packets = append(g.packets, aead.Packet{Data: b[headerSize:],
		Counter: binary.LittleEndian.Uint64(b[8:])})
	r.n++
}

// deliverAll opens the packets of all groups. Then it waits until all earlier batches are
// delivered, and delivers the packets that are authentic and new.
func (r *receiver) deliverAll(now time.Duration) {
	d := r.s.d
	groups := r.groups[:r.used]
	for i := range groups {
		g := &groups[i]
		if g.packets = r.fresh(g.session, g.packets); len(g.packets) > 0 {
			d.tier.Open(r.worker, &g.session.keys.Receive, g.packets)
		}
	}

	if !r.turn {
		d.turns.await(r.batch)
		r.turn = true
	}
	for i := range groups {
		r.deliverGroup(&groups[i], now)
		groups[i] = group{}
	}
	r.n, r.used = 0, 0
}

// deliverGroup delivers the packets of a group that are authentic and new.
func (r *receiver) deliverGroup(g *group, now time.Duration) {
	d, s, packets := r.s.d, g.session, g.packets
	s.mu.Lock()
	bad, old := 0, 0
	for i := range packets {
		if p := &packets[i]; !p.OK {
			bad++
		} else if !s.window.accept(p.Counter) {
			p.OK = false
			old++
		}
	}

	s.mu.Unlock()
	d.drops.add(forged, bad)
	d.drops.add(replayed, old)
	if bad+old == len(packets) {
		return
	}

	r.authentic(s, g.from, now)
	bytes, data := uint64(0), false
	for i := range packets {
		p := &packets[i]
		if !p.OK {
			continue
		}
		bytes += uint64(headerSize + len(p.Data))
		if text := p.Data[:len(p.Data)-aead.Overhead]; len(text) > 0 {
			data = true
			r.deliver(s.peer, text, g.ecn)
		}
	}

	s.peer.rxBytes.Add(bytes)
	s.peer.receivedAt(now, data)
}

// fresh returns the packets without those whose counters are below the replay window, so that
// opening these costs no CPU time. It reuses the slice.
func (r *receiver) fresh(s *session, packets []aead.Packet) []aead.Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := packets[:0]
	for _, p := range packets {
		if !s.window.stale(p.Counter) {
			kept = append(kept, p)
		}
	}
	r.s.d.drops.add(replayed, len(packets)-len(kept))
	return kept
}

// authentic records that an authentic packet of the session came. It updates the endpoint, and
// requests from control what the packet makes due.
func (r *receiver) authentic(s *session, from *sock.Endpoint, now time.Duration) {
	p := s.peer
	p.move(from, now)
	if !s.used.Load() {
		s.used.Store(true)
		if p.next == s {
			r.s.d.post(p, confirmed)
		}
	}
	if at := s.declined.Load(); at != 0 && now-time.Duration(at) > patience &&
		s.declined.CompareAndSwap(at, 0) {
		r.s.d.post(p, insisted)
	}
	// Renew the session if it was begun here and is old. It may be another than current if
	// handshakes crossed; then both must be of about the same age. See proof.
	if s.initiator && now-s.born > refreshOnReceive && p.current != nil &&
		p.current.born-s.born < crossing && !p.refreshed.Load() {
		p.refreshed.Store(true)
		r.s.d.post(p, wantSession)
	}
}

// deliver passes an authentic packet to the coalescer, which writes to the TUN. It drops the packet
// if its source is not an allowed IP of the peer.
func (r *receiver) deliver(p *peer, b []byte, ecn uint8) {
	d := r.s.d
	b, from, bad := packet.Trim(b)
	if bad != packet.None {
		d.drops.add(badInnerPacket+reason(bad), 1)
		return
	}
	if r.lastPeer == nil || from != r.lastFrom {
		r.lastPeer, r.lastFrom = d.state.routes.lookup(from), from
	}
	if r.lastPeer != p {
		d.drops.add(wrongSource, 1)
		return
	}
	if ecn == 3 {
		packet.Congested(b)
	}
	r.join.Add(b)
}

// write writes a packet or superpacket to the TUN. flow selects the queue, because the kernel sends
// the replies of a flow to the queue on which the flow was last written. If the kernel refuses
// superpackets of a protocol, the device stops writing them. write returns false if the caller must
// write the packets of a superpacket one by one.
func (r *receiver) write(flow uint32, parts [][]byte) bool {
	all := r.s.d.shards
	err := all[flow%uint32(len(all))].queue.Write(parts)
	if err == nil {
		return true
	}
	h := packet.ReadHeader(parts[0])
	if h.GSO == packet.GSONone {
		r.s.d.drops.add(tunRefused, 1)
		return true
	}
	if errors.Is(err, unix.EINVAL) {
		if h.GSO == packet.GSOUDP {
			r.join.NoUDP = true
			r.s.d.noUDP.off.Store(true)
		} else {
			r.join.NoTCP = true
			r.s.d.noTCP.off.Store(true)
		}
	}
	return false
}
