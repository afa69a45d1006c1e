package lane

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Asked returns the number of packets that the program behind NFQUEUE received.
func (l *Lane) Asked() uint64 {
	if l.Queue == nil {
		return 0
	}
	return l.Queue.Accepted()
}

// ForgetConnections does what conntrack -F does, in the calling thread's namespace.
func ForgetConnections() error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.ConntrackTableFlush(netlink.ConntrackTable)
}

// warm is the share of an amount that is done before it is measured.
const warm = 20

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

func (l *Lane) PrepareShort(amount int) (do func() error, end func(), err error) {
	do = func() error { return l.shortOnes(amount) }
	return do, func() {}, l.shortOnes(amount / warm)
}
