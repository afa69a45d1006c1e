package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

const (
	// maxBatch is the maximum number of packets that are sealed and sent together.
	maxBatch = 128
	// headerSize is the size of a transport message's header: type, receiver, counter.
	headerSize = 16
	// minTransport is the size of a transport message without content.
	minTransport = headerSize + aead.Overhead
	slabSize     = 192 << 10 // bytes of messages per batch
)

// handshakeTOS is DSCP AF41 without ECN, so that a congested link drops other packets before
// handshakes. The kernel uses the same value (drivers/net/wireguard/messages.h, HANDSHAKE_DSCP).
const handshakeTOS = 0x88

// outbox seals and sends the packets of one thread. It gathers consecutive packets of one session
// and sends them together.
type outbox struct {
	d       *Device
	worker  *aead.Worker
	slab    []byte
	used    int
	session *session
	ecn     uint8
	data    bool
	packets [maxBatch]aead.Packet
	n       int
	sender  sock.Sender
	lost    sock.Stats // the statistics of sender that count has already added
}

func newOutbox(d *Device) (*outbox, error) {
	w, err := aead.NewWorker(d.arena)
	if err != nil {
		return nil, err
	}
	slab, err := unix.Mmap(-1, 0, slabSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map send buffer: %w", err)
	}
	return &outbox{d: d, worker: w, slab: slab}, nil
}

func (o *outbox) close() { _ = unix.Munmap(o.slab) }

// padded returns the length of a packet with padding to a multiple of 16, but not beyond the MTU.
// For a packet larger than the MTU, that holds for the last of its MTU-sized parts. An mtu of 0
// means no limit.
func padded(n, mtu int) int {
	last := n
	if mtu == 0 {
		return (n + 15) &^ 15
	}
	for last > mtu {
		last -= mtu
	}
	return n - last + min(mtu, (last+15)&^15)
}

// room returns the n bytes in which the caller writes the next packet of the session. It first
// flushes the gathered packets if the new packet cannot join them. The padding behind the packet is
// zeroed.
func (o *outbox) room(b *binding, s *session, ecn uint8, n int, now time.Duration) []byte {
	size := padded(n, int(o.d.mtu.Load()))
	if o.session != s || o.ecn != ecn || o.n == maxBatch ||
		o.used+headerSize+size+aead.Overhead > len(o.slab) {
		o.flush(b, now)
	}
	o.session, o.ecn = s, ecn
	text := o.slab[o.used+headerSize : o.used+headerSize+size+aead.Overhead]
	clear(text[n:size])
	o.packets[o.n].Data = text
	o.n++
	o.used += headerSize + size + aead.Overhead
	o.data = o.data || n > 0
	return text[:n]
}

// flush seals and sends the gathered packets.
func (o *outbox) flush(b *binding, now time.Duration) {
	if o.n == 0 {
		return
	}

	s, p := o.session, o.session.peer
	n, used, data := o.n, o.used, o.data
	o.n, o.used, o.data, o.session = 0, 0, false, nil
	ep := p.endpoint.Load()
	if ep == nil || b == nil {
		o.d.drops.add(noEndpoint, n)
		return
	}

	u := b.socket(ep)
	if u == nil {
		o.d.drops.add(sendNoRoute, n)
		return
	}

	first, ok := s.take(n)
	if !ok {
		o.d.drops.add(keyExhausted, n)
		o.d.post(p, wantSession)
		return
	}

	o.sender.Singly = p.singly.Load()
	packets := o.packets[:n]
	at := 0
	for i := range packets {
		h := o.slab[at:]
		binary.LittleEndian.PutUint32(h, noise.TypeTransport)
		binary.LittleEndian.PutUint32(h[4:], s.remote)
		binary.LittleEndian.PutUint64(h[8:], first+uint64(i))
		packets[i].Counter = first + uint64(i)
		at += headerSize + len(packets[i].Data)
	}

	o.d.tier.Seal(o.worker, &s.keys.Send, packets)
	o.runs(packets, o.slab[:used], u, ep)
	o.sent(p, uint64(used))
	p.sentAt(now, data)
	if s.sent.Load() > rekeyAfterMessages || s.initiator && now-s.born > rekeyAfterTime {
		o.d.ask(p, now)
	}
}

// runs sends the packets in segmented datagrams. Consecutive packets of equal size and one shorter
// last packet form one datagram. wire holds the packets with their headers.
func (o *outbox) runs(packets []aead.Packet, wire []byte, u *sock.UDP, ep *sock.Endpoint) {
	for i := 0; i < len(packets); {
		size := headerSize + len(packets[i].Data)
		n, j := size, i+1
		for j < len(packets) {
			next := headerSize + len(packets[j].Data)
			if next > size {
				break
			}
			n += next
			j++
			if next < size {
				break
			}
		}
		if !o.sender.Add(wire[:n], size, o.ecn) {
			o.sender.Flush(u, ep)
			o.sender.Add(wire[:n], size, o.ecn)
		}
		wire = wire[n:]
		i = j
	}
	o.sender.Flush(u, ep)
}

// message sends a handshake message to ep, or nothing if b is nil.
func (o *outbox) message(b *binding, ep *sock.Endpoint, msg []byte) {
	if b == nil {
		return
	}
	u := b.socket(ep)
	if u == nil {
		o.d.drops.add(sendNoRoute, 1)
		return
	}
	o.sender.Add(msg, len(msg), handshakeTOS)
	o.sender.Flush(u, ep)
	o.count()
}

// sent records that n bytes were sent to a peer, and what the sender learned about the endpoint.
func (o *outbox) sent(p *peer, n uint64) {
	p.sentBytes.Add(n)
	o.count()
	if o.sender.SourceLost {
		p.forgetSource()
	}
	if o.sender.SegmentsRefused {
		p.singly.Store(true)
	}
}

// count adds the sender's losses to the device's counters.
func (o *outbox) count() {
	now, old := o.sender.Stats, o.lost
	if now == old {
		return
	}
	o.lost = now
	o.d.drops.add(sendTooLarge, int(now.TooLarge-old.TooLarge))
	o.d.drops.add(sendNoRoute, int(now.NoRoute-old.NoRoute))
	o.d.drops.add(sendRefused, int(now.Refused-old.Refused))
	o.d.drops.add(sendFull, int(now.Full-old.Full))
	o.d.drops.add(sendFailed, int(now.Other-old.Other))
}
