package sample

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/nflog"
)

// Sample describes a dropped packet.
type Sample struct {
	// Packet has the name of the reason as its Prefix. Its Headers are zero if the packet has no
	// IP header that can be read.
	nflog.Packet
	// Netns is the cookie of the network namespace of a socket that a service refused. Src is then
	// not valid, because the socket has sent no packet. Netns is 0 for packets.
	Netns uint64
	// ARP reports whether the packet is an ARP message. Src and Dst are then its sender and its
	// target.
	ARP bool
	// Time is when the packet was dropped.
	Time time.Time
}

// Ring holds the ring of samples and the map of its limits. The caller owns both maps.
type Ring struct {
	// Samples is the ring.
	Samples *ebpf.Map
	// Limits has the limit of each reason.
	Limits *ebpf.Map
}

// Written returns the number of samples that programs have written since the ring was made, by
// reason. It leaves out reasons without samples.
func (r Ring) Written() (map[string]uint64, error) {
	written := map[string]uint64{}
	for number, name := range names {
		var limit [3]uint64 // struct sample_limit: the third is written
		if err := r.Limits.Lookup(number, &limit); err != nil {
			return nil, fmt.Errorf("read how many packets are sampled for %s: %w", name, err)
		}
		if limit[2] > 0 {
			written[name] += limit[2]
		}
	}
	return written, nil
}

// names maps the reason numbers of samples to the names of reasons.
var names = reasonNames()

func reasonNames() map[uint32]string {
	names := map[uint32]string{}
	for _, r := range bpf.Reasons {
		names[r.Number] = r.Name
	}
	for i, c := range bpf.ServiceCounts {
		if c.Reason() != "" {
			names[bpf.SampledService+uint32(i)] = c.Reason()
		}
	}
	return names
}

// nameOf returns the name of the reason with a number.
func nameOf(number uint32) string {
	if name := names[number]; name != "" {
		return name
	}
	return fmt.Sprintf("reason %d", number) // a program of another version wrote it
}

// Reader reads samples. Close it at the end.
type Reader struct{ reader *ringbuf.Reader }

// Open opens the reader of the ring.
func (r Ring) Open() (*Reader, error) {
	reader, err := ringbuf.NewReader(r.Samples)
	if err != nil {
		return nil, fmt.Errorf("open the ring of samples: %w", err)
	}
	return &Reader{reader}, nil
}

// Read waits for a sample. It leaves out samples of another version.
func (r *Reader) Read() (Sample, error) {
	var record ringbuf.Record
	for {
		if err := r.reader.ReadInto(&record); err != nil {
			return Sample{}, fmt.Errorf("read the ring of samples: %w", err)
		}
		if s, ok := read(record.RawSample); ok {
			return s, nil
		}
	}
}

// Waiting passes the samples that the ring holds to keep, the oldest first. It does not wait for
// more.
func (r *Reader) Waiting(keep func(Sample)) error {
	r.reader.SetDeadline(time.Now())
	defer r.reader.SetDeadline(time.Time{})
	for {
		s, err := r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		keep(s)
	}
}

// Close closes the reader. A Read that waits returns. Samples that were not read stay in the ring.
func (r *Reader) Close() error { return r.reader.Close() }

// Sizes and offsets of struct drop_sample, of struct sample_socket, and of an ARP message for IPv4 over Ethernet (RFC 826).
const (
	sampleSize, headersAt  = 88, 24
	arpSender, arpTarget   = 14, 24
	arpSize, etherTypeARP  = 28, unix.ETH_P_ARP
	headersRoom, addr4Size = 64, 4
	socketSize             = 32
)

// read reads a struct drop_sample, whose size identifies its layout.
func read(b []byte) (s Sample, ok bool) {
	if len(b) != sampleSize {
		return s, false
	}
	native := binary.NativeEndian
	s.Time = ago(native.Uint64(b))
	s.Prefix = nameOf(native.Uint32(b[8:]))
	s.In, s.Out = int(native.Uint32(b[12:])), int(native.Uint32(b[16:]))
	size := native.Uint16(b[22:])
	headers := b[headersAt : headersAt+min(int(size), headersRoom)]

	if isOfSocket(native.Uint32(b[8:])) {
		return s, s.readSocket(headers)
	}
	if binary.BigEndian.Uint16(b[20:]) != etherTypeARP {
		s.Headers, _ = nflog.ReadHeaders(headers)
		return s, true
	}
	if s.ARP = true; len(headers) == arpSize {
		s.Src = netip.AddrFrom4([addr4Size]byte(headers[arpSender:]))
		s.Dst = netip.AddrFrom4([addr4Size]byte(headers[arpTarget:]))
		s.Length = arpSize
	}
	return s, true
}

// isOfSocket reports whether samples with this reason are of sockets.
func isOfSocket(number uint32) bool {
	i := int(number) - bpf.SampledService
	return i >= 0 && i < len(bpf.ServiceCounts) && bpf.ServiceCounts[i].IsOfSocket()
}

// readSocket reads a struct sample_socket. It reports whether it is one.
func (s *Sample) readSocket(b []byte) bool {
	if len(b) != socketSize {
		return false
	}
	s.Netns = binary.NativeEndian.Uint64(b)
	s.Dst, s.DstPort = netip.AddrFrom16([16]byte(b[8:])).Unmap(), binary.BigEndian.Uint16(b[24:])
	s.Proto = b[26]
	return true
}

// ago returns the wall-clock time at which CLOCK_BOOTTIME had the value boot, in nanoseconds.
func ago(boot uint64) time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now.Nano() - int64(boot)))
}
