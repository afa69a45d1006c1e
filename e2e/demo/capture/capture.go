package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Capture collects frames on a link. Start it with Start, and end it with Close.
type Capture struct {
	fd     int
	stop   chan struct{}
	frames chan []report.Frame
}

// Start begins to capture on link in the network namespace ns. It keeps the first limit frames for
// which want returns true. It calls want for every frame.
func Start(ns, link string, want func([]byte) bool, limit int) (*Capture, error) {
	s := &Capture{stop: make(chan struct{}), frames: make(chan []report.Frame, 1)}
	err := netns.Do(ns, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			int(all)); err != nil {
			return err
		}
		// With this time limit, read checks often enough whether to stop.
		wake := unix.NsecToTimeval(int64(100 * time.Millisecond))
		err = errors.Join(unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake))
		if err != nil {
			return errors.Join(err, unix.Close(s.fd))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", link, err)
	}
	go s.read(want, limit)
	return s, nil
}

func (s *Capture) read(want func([]byte) bool, limit int) {
	var kept []report.Frame
	b := make([]byte, 1<<16)
	for {
		select {
		case <-s.stop:
			s.frames <- kept
			return
		default:
		}
		n, _, err := unix.Recvfrom(s.fd, b, 0)
		if err == nil && want(b[:n]) && len(kept) < limit {
			frame := bytes.Clone(b[:n])
			kept = append(kept, report.Frame{Summary: summary(frame), Data: frame})
		}
	}
}

// Close ends the capture and returns the kept frames.
func (s *Capture) Close() []report.Frame {
	close(s.stop)
	frames := <-s.frames
	_ = unix.Close(s.fd)
	return frames
}

// IP protocol numbers (IANA).
const (
	TCP = 6
	UDP = 17
)

// Packet holds addresses, protocol and ports of a frame.
type Packet struct {
	Src, Dst         netip.Addr
	Proto            uint8
	SrcPort, DstPort uint16
}

// Parse parses Ethernet, IPv4 or IPv6 without extension headers, and ports. ok is false for
// any other frame.
func Parse(frame []byte) (p Packet, ok bool) {
	if len(frame) < 14 {
		return p, false
	}

	ip := frame[14:]
	var rest []byte
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if len(ip) < 20 {
			return p, false
		}
		header := int(ip[0]&0xf) * 4
		if header < 20 || len(ip) < header {
			return p, false
		}
		p.Proto, rest = ip[9], ip[header:]
		p.Src, _ = netip.AddrFromSlice(ip[12:16])
		p.Dst, _ = netip.AddrFromSlice(ip[16:20])
	case unix.ETH_P_IPV6:
		if len(ip) < 40 {
			return p, false
		}
		p.Proto, rest = ip[6], ip[40:]
		p.Src, _ = netip.AddrFromSlice(ip[8:24])
		p.Dst, _ = netip.AddrFromSlice(ip[24:40])
	default:
		return p, false
	}

	if p.Proto == TCP || p.Proto == UDP {
		if len(rest) < 4 {
			return p, false
		}
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}

	return p, true
}

// summary returns a line for the report that describes a frame.
func summary(frame []byte) string {
	p, ok := Parse(frame)
	if !ok {
		return fmt.Sprintf("%d bytes", len(frame))
	}
	proto := map[uint8]string{TCP: "TCP", UDP: "UDP"}[p.Proto]
	if proto == "" {
		return fmt.Sprintf("%s → %s, IP protocol %d, %d bytes", p.Src, p.Dst, p.Proto, len(frame))
	}
	return fmt.Sprintf("%s → %s, %s, %d bytes", netip.AddrPortFrom(p.Src, p.SrcPort),
		netip.AddrPortFrom(p.Dst, p.DstPort), proto, len(frame))
}
