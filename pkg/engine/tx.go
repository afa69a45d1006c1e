package engine

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// shard is a queue of the TUN with its sending thread, and a receiver.
type shard struct {
	d      *Device
	queue  *sock.Queue
	buf    []byte // one packet of the TUN with its vnet header
	out    *outbox
	waiter sock.Waiter
	stop   *sock.Waker
	slice  slice // of the sending thread

	rx *receiver

	lastTo   netip.Addr // the last destination in this batch
	lastPeer *peer      // the peer of lastTo
}

// tunBuffer is the size of the largest packet with its vnet header, bytes.
const tunBuffer = 64<<10 + packet.HeaderSize

func newShard(d *Device, q *sock.Queue) (*shard, error) {
	out, err := newOutbox(d)
	if err != nil {
		return nil, err
	}
	buf, err := unix.Mmap(-1, 0, tunBuffer, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	stop, err := sock.NewWaker()
	if err != nil {
		return nil, err
	}
	s := &shard{d: d, queue: q, buf: buf, out: out, stop: stop}
	s.rx, err = newReceiver(s)
	return s, err
}

func (s *shard) close() {
	s.out.close()
	s.rx.close()
	s.stop.Close()
	_ = unix.Munmap(s.buf)
}

// readsPerBatch bounds the reads from the TUN before the gathered packets are sent.
const readsPerBatch = 16

// runTX is the thread that forwards packets from the TUN to the network. It ends when the device is
// halted or the TUN is gone.
func (s *shard) runTX() {
	secret.LockThread()
	s.waiter.Set(s.queue.FD, s.stop.FD)
	for {
		for {
			more, err := s.transmit()
			if err != nil {
				s.d.lostTUN(err)
				return
			}
			if !more || s.d.halted.Load() {
				break
			}
		}

		if s.d.halted.Load() {
			return
		}

		s.slice.end()
		s.waiter.Wait()
		if _, failed := s.waiter.Ready(0); failed && !s.d.halted.Load() {
			if _, err := s.queue.Read(s.buf); ignorable(err) != nil {
				s.d.lostTUN(err)
				return
			}
			// The link is down. Until it is up, the wait returns at once with an error.
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// transmit reads and sends one batch, and reports whether there may be more.
func (s *shard) transmit() (more bool, err error) {
	n, err := s.queue.Read(s.buf)
	if err != nil {
		return false, ignorable(err)
	}
	d := s.d
	now := d.now()
	d.state.RLock()
	defer d.state.RUnlock()
	s.lastPeer, s.lastTo = nil, netip.Addr{}
	for i := 0; ; {
		s.outbound(s.buf[:n], now)
		if i++; i == readsPerBatch || d.halted.Load() {
			break
		}
		if n, err = s.queue.Read(s.buf); err != nil {
			break
		}
	}
	s.out.flush(d.state.bound, now)
	return err == nil, ignorable(err)
}

// ignorable returns nil for the transient errors of a TUN, which mean that there is nothing to read
// or that the link is down. It returns other errors unchanged.
func ignorable(err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}

// outbound adds a packet of the TUN, with its vnet header, to the outbox. Without a session it
// stages the packet.
func (s *shard) outbound(b []byte, now time.Duration) {
	d := s.d
	if len(b) < packet.HeaderSize {
		d.drops.add(badTUNPacket+reason(packet.TooShort), 1)
		return
	}

	super, bad := packet.Parse(packet.ReadHeader(b), b[packet.HeaderSize:])
	if bad != packet.None {
		d.drops.add(badTUNPacket+reason(bad), 1)
		return
	}

	to := super.Destination()
	p := s.lastPeer
	if p == nil || to != s.lastTo {
		if p = d.state.routes.lookup(to); p == nil {
			d.drops.add(noRoute, super.Segments)
			return
		}
		s.lastPeer, s.lastTo = p, to
	}

	if d.state.bound == nil {
		d.drops.add(deviceDown, super.Segments)
		return
	}

	if n := padded(super.SegmentLen(0), int(d.mtu.Load())); n+minTransport > sock.MaxDatagram {
		d.drops.add(sendTooLarge, super.Segments)
		return
	}

	session := p.current
	if session == nil || session.expired(now) || session.exhausted() {
		for i := range super.Segments {
			seg := make([]byte, super.SegmentLen(i))
			super.Segment(i, seg)
			d.stage(p, seg)
		}
		d.ask(p, now)
		return
	}

	ecn := super.ECN()
	for i := range super.Segments {
		super.Segment(i, s.out.room(d.state.bound, session, ecn, super.SegmentLen(i), now))
	}
}

// askInterval is the shortest interval between a thread's requests for a session of a peer.
const askInterval = 100 * time.Millisecond

// ask posts wantSession for a peer, at most once per askInterval.
func (d *Device) ask(p *peer, now time.Duration) {
	if last := p.asked.Load(); last != 0 && now-time.Duration(last) < askInterval {
		return
	}
	p.asked.Store(int64(now))
	d.post(p, wantSession)
}
