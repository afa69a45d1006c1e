package sock

import (
	"bytes"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probeSize is the size of the datagrams of a probe, bytes.
	probeSize = 400
	// probeWait bounds the wait for a datagram on loopback.
	probeWait = 100 * time.Millisecond
)

// offloads reports which offloads of the kernel work.
type offloads struct{ segment, gro bool }

// whole is the assumption if a probe has no result.
var whole = offloads{true, true}

var probed [2]struct {
	once sync.Once
	got  offloads
}

// proven returns which offloads of an address family work. The first call per family in a process
// probes them, on the loopback interface of the current network namespace.
func proven(v6 bool) offloads {
	p := &probed[0]
	if v6 {
		p = &probed[1]
	}
	p.once.Do(func() { p.got = probe(v6) })
	return p.got
}

// probe sends a single datagram and then segmented datagrams over loopback. An offload works if the
// segmented datagrams arrive complete and in order. If the single datagram does not arrive, the
// probe has no result.
func probe(v6 bool) offloads {
	if !passes(v6, 1, false) {
		return whole
	}
	plain := passes(v6, 4, false)
	return offloads{segment: plain, gro: plain && passes(v6, 4, true)}
}

// passes sends count datagrams as one, the last of which is shorter. It reports whether they arrive
// complete and in order.
func passes(v6 bool, count int, gro bool) bool {
	from, _, err := open(v6, 0, 0)
	if err != nil {
		return false
	}
	defer from.Close()
	to, port, err := open(v6, 0, 0)
	if err != nil {
		return false
	}
	defer to.Close()
	if _, err := unix.GetsockoptInt(from.FD, unix.IPPROTO_UDP, unix.UDP_SEGMENT); err != nil {
		return false
	}
	if gro && unix.SetsockoptInt(to.FD, unix.IPPROTO_UDP, unix.UDP_GRO, 1) != nil {
		return false
	}
	from.segment.Store(true)

	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if v6 {
		addr = netip.IPv6Loopback()
	}
	var wire []byte
	for i := range count {
		wire = append(wire, bytes.Repeat([]byte{byte(i + 1)}, probeSize)...)
	}
	wire = wire[:len(wire)-probeSize/2]
	s := new(Sender)
	s.Add(wire, probeSize, 0)
	return s.Flush(from, &Endpoint{Addr: netip.AddrPortFrom(addr, port)}) == count &&
		comes(to, wire)
}

// comes reports whether u receives exactly the bytes of wire, in datagrams of probeSize bytes and a
// shorter last one.
func comes(u *UDP, wire []byte) bool {
	r, err := NewReceiver()
	if err != nil {
		return false
	}
	defer r.Close()

	for end := time.Now().Add(probeWait); len(wire) > 0; {
		messages, err := r.Receive(u)
		if err != nil {
			left := time.Until(end)
			fds := []unix.PollFd{{Fd: int32(u.FD), Events: unix.POLLIN}}
			if left <= 0 || poll(fds, left) != nil {
				return false
			}
			continue
		}
		for _, m := range messages {
			if !bytes.HasPrefix(wire, m.Data) || m.Size != min(probeSize, len(wire)) {
				return false
			}
			wire = wire[len(m.Data):]
		}
	}
	return true
}

// poll waits until a descriptor is ready, at most d. It returns nil if a signal interrupts it.
func poll(fds []unix.PollFd, d time.Duration) error {
	t := unix.NsecToTimespec(int64(d))
	if _, err := unix.Ppoll(fds, &t, nil); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}
