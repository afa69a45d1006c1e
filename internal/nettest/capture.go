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

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/packetring"
)

// Properties of a Sniffer's ring.
const (
	// DefaultRing is the size of a Sniffer's ring, bytes.
	DefaultRing  = 64 << 20
	blockTimeout = 10 * time.Millisecond
)

// Frame is one captured link-layer frame.
type Frame = packetring.Frame

// SnifferStats describes how complete a capture is.
type SnifferStats struct {
	// Frames is the number of captured frames.
	Frames uint64
	// Drops is the number of frames that the kernel dropped because the ring was full
	// (PACKET_STATISTICS). A capture with drops proves nothing.
	Drops uint64
	// Downs counts how often the link went down or disappeared during the capture.
	Downs uint64
}

// SnifferOptions configure a Sniffer. The zero value captures whole frames on all links.
type SnifferOptions struct {
	// Link is the link to capture on. An empty string means all links of the namespace, including
	// those that appear later.
	Link string
	// Ring is the size of the ring, bytes. 0 means DefaultRing.
	Ring int
	// Snap bounds the bytes that are kept of a frame. 0 means no limit.
	Snap int
}

// Sniffer captures frames with an AF_PACKET ring.
type Sniffer struct {
	ring  *packetring.Ring
	each  func(Frame)
	stop  atomic.Bool
	done  chan struct{}
	once  sync.Once
	stats SnifferStats
	err   error
}

// OpenSniffer begins to capture in the calling thread's network namespace. It captures every frame
// after its return. It calls each for every frame, on one goroutine. Data of the frame is valid
// only during the call. The caller must call Stop.
func OpenSniffer(opts SnifferOptions, each func(Frame)) (*Sniffer, error) {
	size := max(opts.Ring, 2*packetring.BlockSize)
	if opts.Ring == 0 {
		size = DefaultRing
	}
	ring, err := packetring.Open(packetring.RingConfig{
		Link: opts.Link, Blocks: size / packetring.BlockSize, Retire: blockTimeout,
		Snap: opts.Snap, Promiscuous: opts.Link != "",
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %q: %w", opts.Link, err)
	}
	s := &Sniffer{ring: ring, each: each, done: make(chan struct{})}
	go s.run()
	return s, nil
}

// Stop ends the capture once every earlier frame was passed to each, and returns how complete the
// capture was. A second call returns the same result.
func (s *Sniffer) Stop() (SnifferStats, error) {
	s.once.Do(func() {
		err := s.ring.Mute()
		s.stop.Store(true)
		<-s.done
		s.err = errors.Join(err, s.err, s.ring.Close())
	})
	<-s.done
	return s.stats, s.err
}

func (s *Sniffer) run() {
	defer close(s.done)
	for {
		s.ring.Drain(s.take)
		stopping := s.stop.Load()
		full, down, err := s.ring.Wait(10 * blockTimeout)
		if down {
			s.stats.Downs++
		}
		if err != nil || stopping && !full {
			var errCount error
			_, s.stats.Drops, errCount = s.ring.Counts()
			s.err = errors.Join(err, errCount)
			return
		}
	}
}

func (s *Sniffer) take(f Frame) {
	s.stats.Frames++
	s.each(f)
}

// Capture collects frames for a test.
type Capture struct {
	*Sniffer
	mu     sync.Mutex
	frames []Frame
}

// NewCapture begins to capture in ns and keeps every frame in memory. The capture ends with the
// test. A long test should use OpenSniffer instead.
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

// Frames returns the frames captured so far.
func (c *Capture) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// All stops the capture and returns every frame. It fails the test if the kernel dropped a frame,
// because the capture then proves nothing.
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

// SendFrames sends Ethernet frames as they are, headers included and in this order, out of a link
// of the calling thread's network namespace. The kernel itself would never send such frames.
func SendFrames(link string, frames ...[]byte) error {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return fmt.Errorf("send frames on %s: %w", link, err)
	}
	// With protocol 0, the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	for n, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
			return fmt.Errorf("send frame %d on %s: %w", n, link, err)
		}
	}
	return nil
}
