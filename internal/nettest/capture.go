package nettest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ring of a Sniffer: blocks that the kernel fills and hands over when full
// or after blockTimeout. A frame never crosses blocks, so a block must hold the largest.
const (
	blockSize    = 1 << 20
	frameSize    = 1 << 11
	blockTimeout = 10 * time.Millisecond
	// DefaultRing is the size of a Sniffer's ring, bytes.
	DefaultRing = 64 << 20
)

// Frame is one captured link-layer frame.
type Frame struct {
	// Time is when the kernel saw it.
	Time time.Time
	// Index is the index of the link that it was seen on.
	Index int
	// Outgoing reports whether the link sent it (PACKET_OUTGOING); else it came in.
	Outgoing bool
	// Length is the length on the wire; Data may be shorter by a Snap.
	Length int
	// Data begins at the link-layer header and has the VLAN tag in place that
	// the kernel keeps beside a packet.
	Data []byte
}

// SnifferStats says how complete a capture is.
type SnifferStats struct {
	// Frames is the number of frames that were handed out.
	Frames uint64
	// Drops is the number that the kernel had to drop because the ring was
	// full (PACKET_STATISTICS). A capture with drops proves nothing.
	Drops uint64
	// Truncated is the number of frames longer than the Snap.
	Truncated uint64
	// Downs is how often the link went down, or away, meanwhile.
	Downs uint64
}

// SnifferOptions configure a Sniffer; the zero value is good for tests.
type SnifferOptions struct {
	// Link is the link to capture on; empty is all of the namespace, those that
	// appear later included.
	Link string
	// Ring is the size of the ring, bytes; 0 is DefaultRing.
	Ring int
	// Snap is how many bytes of a frame are kept; 0 is all.
	Snap int
}

// Sniffer captures frames with an AF_PACKET ring (TPACKET_V3).
type Sniffer struct {
	fd    int
	ring  []byte
	snap  int
	each  func(Frame)
	stop  atomic.Bool
	done  chan struct{}
	once  sync.Once
	stats SnifferStats
	err   error
}

// OpenSniffer begins to capture in the calling thread's network namespace: when
// it returns, no later frame is missed. each is called for every frame, one at
// a time and on one goroutine; the frame's Data is only valid within the call.
// Stop must be called.
func OpenSniffer(opts SnifferOptions, each func(Frame)) (*Sniffer, error) {
	// No protocol yet, so that nothing is queued before the ring is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	s := &Sniffer{fd: fd, snap: opts.Snap, each: each, done: make(chan struct{})}
	if err := s.open(opts); err != nil {
		s.close()
		return nil, fmt.Errorf("capture on %q: %w", opts.Link, err)
	}
	go s.run()
	return s, nil
}

func (s *Sniffer) open(opts SnifferOptions) error {
	size := max(opts.Ring, 2*blockSize)
	if opts.Ring == 0 {
		size = DefaultRing
	}

	blocks := size / blockSize
	if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_VERSION,
		unix.TPACKET_V3); err != nil {
		return fmt.Errorf("set TPACKET_V3: %w", err)
	}

	if opts.Snap > 0 {
		if err := setFilter(s.fd, uint32(opts.Snap)); err != nil {
			return err
		}
	}

	req := unix.TpacketReq3{
		Block_size: blockSize, Block_nr: uint32(blocks),
		Frame_size: frameSize, Frame_nr: uint32(blocks * (blockSize / frameSize)),
		Retire_blk_tov: uint32(blockTimeout.Milliseconds()),
	}
	if err := unix.SetsockoptTpacketReq3(s.fd, unix.SOL_PACKET, unix.PACKET_RX_RING,
		&req); err != nil {
		return fmt.Errorf("make ring of %d MiB: %w", size>>20, err)
	}

	ring, err := unix.Mmap(s.fd, 0, blocks*blockSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map ring: %w", err)
	}

	s.ring = ring
	addr := unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)}
	if opts.Link != "" {
		link, err := net.InterfaceByName(opts.Link)
		if err != nil {
			return err
		}
		addr.Ifindex = link.Index
		mreq := unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(s.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&mreq); err != nil {
			return fmt.Errorf("set promiscuous: %w", err)
		}
	}

	return unix.Bind(s.fd, &addr)
}

// Stop ends the capture after every frame that was seen before the call has
// been handed out, and says how complete it was. Calling it again gives the
// same answer.
func (s *Sniffer) Stop() (SnifferStats, error) {
	s.once.Do(func() {
		// What comes from now on is filtered, which does not count as dropped.
		if err := setFilter(s.fd, 0); err != nil {
			s.err = err
		}
		s.stop.Store(true)
		<-s.done
		s.close()
	})
	<-s.done
	return s.stats, s.err
}

func (s *Sniffer) close() {
	if s.ring != nil {
		s.err = errors.Join(s.err, unix.Munmap(s.ring))
	}
	s.err = errors.Join(s.err, unix.Close(s.fd))
}

func (s *Sniffer) run() {
	defer close(s.done)
	for at := 0; ; {
		block := s.ring[at*blockSize:][:blockSize]
		hdr := (*unix.TpacketHdrV1)(unsafe.Pointer(&block[8]))
		for atomic.LoadUint32(&hdr.Block_status)&unix.TP_STATUS_USER == 0 {
			stopping := s.stop.Load()
			idle, err := s.wait()
			if err != nil || stopping && idle {
				s.err = errors.Join(s.err, err, s.count())
				return
			}
		}
		s.read(block, hdr)
		atomic.StoreUint32(&hdr.Block_status, unix.TP_STATUS_KERNEL)
		at = (at + 1) % (len(s.ring) / blockSize)
	}
}

// wait polls until a block is ready; idle is whether none was for so long that
// the kernel has retired every block that holds a frame.
func (s *Sniffer) wait() (idle bool, err error) {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN | unix.POLLERR}}
	n, err := unix.Poll(fds, int((10 * blockTimeout).Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("poll packet socket: %w", err)
	}
	if fds[0].Revents&unix.POLLERR != 0 {
		// Reading the error clears it. ENETDOWN: the link went down; the kernel
		// goes on when it is up again.
		code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return false, fmt.Errorf("read socket error: %w", err)
		}
		if e := unix.Errno(code); code != 0 && e != unix.ENETDOWN {
			return false, fmt.Errorf("packet socket: %w", e)
		}
		s.stats.Downs++
	}
	return n == 0, nil
}

// read hands out the frames of one block.
func (s *Sniffer) read(block []byte, hdr *unix.TpacketHdrV1) {
	at := hdr.Offset_to_first_pkt
	for range hdr.Num_pkts {
		p := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		ll := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(
			&block[at+tpacketAlign(uint32(unsafe.Sizeof(*p)))]))
		data := block[at+uint32(p.Mac):][:p.Snaplen:p.Snaplen]
		if p.Status&unix.TP_STATUS_VLAN_VALID != 0 && len(data) >= 12 {
			tpid := uint16(unix.ETH_P_8021Q)
			if p.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
				tpid = p.Hv1.Vlan_tpid
			}
			tci := uint16(p.Hv1.Vlan_tci)
			data = slices.Insert(data, 12, byte(tpid>>8), byte(tpid), byte(tci>>8), byte(tci))
		}
		if p.Snaplen < p.Len {
			s.stats.Truncated++
		}
		s.stats.Frames++
		s.each(Frame{
			Time: time.Unix(int64(p.Sec), int64(p.Nsec)), Index: int(ll.Ifindex),
			Outgoing: ll.Pkttype == unix.PACKET_OUTGOING, Length: int(p.Len), Data: data,
		})
		at += p.Next_offset
	}
}

func (s *Sniffer) count() error {
	st, err := unix.GetsockoptTpacketStatsV3(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("read packet statistics: %w", err)
	}
	s.stats.Drops = uint64(st.Drops)
	return nil
}

// setFilter keeps the first snap bytes of each frame, for 0 none at all.
func setFilter(fd int, snap uint32) error {
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: snap}
	prog := unix.SockFprog{Len: 1, Filter: &ret}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&prog); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

func tpacketAlign(n uint32) uint32 {
	return (n + unix.TPACKET_ALIGNMENT - 1) &^ (unix.TPACKET_ALIGNMENT - 1)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Capture collects frames for a test.
type Capture struct {
	*Sniffer
	mu     sync.Mutex
	frames []Frame
}

// NewCapture begins to capture in ns and keeps every frame in memory; it is
// stopped when the test ends. A long test calls OpenSniffer instead.
func NewCapture(t testing.TB, ns *NS, opts SnifferOptions) *Capture {
	t.Helper()
	NeedRoot(t)
	c := &Capture{}
	ns.Run(t, func() (err error) {
		c.Sniffer, err = OpenSniffer(opts, func(f Frame) {
			f.Data = slices.Clone(f.Data)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.frames = append(c.frames, f)
		})
		return err
	})
	t.Cleanup(func() { _, _ = c.Stop() })
	return c
}

// Frames are those seen so far.
func (c *Capture) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// All stops the capture and returns every frame. The test fails when the kernel
// dropped one, for then the capture proves nothing.
func (c *Capture) All(t testing.TB) []Frame {
	t.Helper()
	stats, err := c.Stop()
	if err != nil {
		t.Fatalf("capture: %v", err)
	}
	if stats.Drops > 0 {
		t.Fatalf("capture: the kernel dropped %d frames", stats.Drops)
	}
	return c.Frames()
}
