package lane

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Asked returns the number of packets that the program behind NFQUEUE received, or 0 in lanes
// without it.
func (l *Lane) Asked() uint64 {
	if l.Queue == nil {
		return 0
	}
	return l.Queue.Accepted()
}

// ForgetConnections flushes the conntrack table of the calling thread's namespace (conntrack -F).
func ForgetConnections() error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.ConntrackTableFlush(netlink.ConntrackTable)
}

// warm is the divisor that gives the part of an amount that is moved before the measurement.
const warm = 20

// PrepareStream opens a connection over which do sends amount bytes. end closes it. All must be
// called on one thread in the client's namespace.
func (l *Lane) PrepareStream(amount int) (do func() error, end func(), err error) {
	s, err := l.open()
	if err != nil {
		return nil, nil, err
	}
	if err := s.move(amount / warm); err != nil {
		s.close()
		return nil, nil, err
	}
	return func() error { return s.move(amount) }, s.close, nil
}

// PrepareShort returns do, which makes amount short connections, and an end that does nothing. All
// must be called on one thread in the client's namespace.
func (l *Lane) PrepareShort(amount int) (do func() error, end func(), err error) {
	do = func() error { return l.shortOnes(amount) }
	return do, func() {}, l.shortOnes(amount / warm)
}
