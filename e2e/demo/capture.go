package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
)

// shownFrames is the number of frames of each network that the report shows.
const shownFrames = 3

// sniffer captures frames on a link. Use sniff, then close.
type sniffer struct {
	fd     int
	stop   chan struct{}
	frames chan [][]byte
}

// sniff begins to capture on link in the network namespace ns. It keeps the first limit frames for
// which want returns true. It calls want for every frame.
func sniff(ns, link string, want func([]byte) bool, limit int) (*sniffer, error) {
	s := &sniffer{stop: make(chan struct{}), frames: make(chan [][]byte, 1)}
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

func (s *sniffer) read(want func([]byte) bool, limit int) {
	var kept [][]byte
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
			kept = append(kept, append([]byte(nil), b[:n]...))
		}
	}
}

// close ends the capture and returns the kept frames.
func (s *sniffer) close() [][]byte {
	close(s.stop)
	frames := <-s.frames
	_ = unix.Close(s.fd)
	return frames
}

// IP protocol numbers (IANA).
const (
	tcp = 6
	udp = 17
)

// packet holds addresses, protocol and ports of a frame.
type packet struct {
	src, dst         netip.Addr
	proto            uint8
	srcPort, dstPort uint16
}

// parseFrame parses Ethernet, IPv4 or IPv6 without extension headers, and ports. ok is false for
// any other frame.
func parseFrame(frame []byte) (p packet, ok bool) {
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
		p.proto, rest = ip[9], ip[header:]
		p.src, _ = netip.AddrFromSlice(ip[12:16])
		p.dst, _ = netip.AddrFromSlice(ip[16:20])
	case unix.ETH_P_IPV6:
		if len(ip) < 40 {
			return p, false
		}
		p.proto, rest = ip[6], ip[40:]
		p.src, _ = netip.AddrFromSlice(ip[8:24])
		p.dst, _ = netip.AddrFromSlice(ip[24:40])
	default:
		return p, false
	}

	if p.proto == tcp || p.proto == udp {
		if len(rest) < 4 {
			return p, false
		}
		p.srcPort, p.dstPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}

	return p, true
}

// summary returns a line for the report that describes a frame.
func summary(frame []byte) string {
	p, ok := parseFrame(frame)
	if !ok {
		return fmt.Sprintf("%d bytes", len(frame))
	}
	proto := map[uint8]string{tcp: "TCP", udp: "UDP"}[p.proto]
	if proto == "" {
		return fmt.Sprintf("%s → %s, IP protocol %d, %d bytes", p.src, p.dst, p.proto, len(frame))
	}
	return fmt.Sprintf("%s → %s, %s, %d bytes", netip.AddrPortFrom(p.src, p.srcPort),
		netip.AddrPortFrom(p.dst, p.dstPort), proto, len(frame))
}
