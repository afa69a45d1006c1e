package tunlink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// tunLink is the netlink library's type name of a TUN or TAP.
const tunLink = "tuntap"

// Queues are the attached queues of a TUN, and its MTU in bytes.
type Queues struct {
	FDs []int
	MTU int
}

// Close detaches from the queues. The TUN continues to exist.
func (q Queues) Close() {
	for _, fd := range q.FDs {
		unix.Close(fd)
	}
}

// Open attaches to one queue of the TUN called name, as OpenQueues does, and returns it as a device
// for wireguard-go.
func Open(name string, mtu int) (tun.Device, error) {
	q, err := OpenQueues(name, mtu, 0, 1)
	if err != nil {
		return nil, err
	}
	// Make the os.File only now, because the runtime's poller cannot poll the descriptor before it
	// is attached to a TUN.
	file := os.NewFile(uintptr(q.FDs[0]), "/dev/net/tun")
	dev, err := tun.CreateTUNFromFile(file, q.MTU)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("hand over TUN %s: %w", name, err)
	}
	return summedTUN{dev}, nil
}

// OpenQueues attaches to n queues of the TUN called name. If the TUN does not exist, it makes a
// persistent TUN with flags and mtu, in the group of tunnels, with a queue long enough for bursts,
// and sets it up. An existing TUN keeps its settings. If it was made for a single queue, only that
// queue is attached.
func OpenQueues(name string, mtu int, flags uint16, n int) (Queues, error) {
	h, err := nl.Open()
	if err != nil {
		return Queues{}, err
	}
	defer h.Close()
	old, err := h.LinkByName(name)
	if err != nil && !errors.Is(err, nl.ErrNotFound) {
		return Queues{}, fmt.Errorf("look for %s: %w", name, err)
	}

	created := err != nil
	if !created {
		if flags, err = queueFlags(old); err != nil {
			return Queues{}, err
		}
		mtu = old.Attrs().MTU
	}
	if flags&unix.IFF_MULTI_QUEUE == 0 {
		n = 1
	}

	q := Queues{MTU: mtu}
	for range n {
		fd, err := attachTUN(name, flags)
		if err != nil {
			q.Close()
			return Queues{}, err
		}
		q.FDs = append(q.FDs, fd)
	}

	if err := setUpTUN(h, name, mtu, created); err != nil {
		q.Close()
		return Queues{}, err
	}

	return q, nil
}

// queueFlags returns the flags that are needed to attach to an existing TUN, which another release
// may have made. IFF_MULTI_QUEUE must be as it was when the TUN was made (drivers/net/tun.c,
// tun_set_iff).
func queueFlags(l nl.Link) (uint16, error) {
	t, ok := l.(*nl.Tuntap)
	switch {
	case !ok || l.Type() != tunLink:
		return 0, fmt.Errorf("device %s exists and is of type %s, not a TUN: remove it or choose "+
			"another name", l.Attrs().Name, l.Type())
	case t.Mode != unix.IFF_TUN:
		return 0, fmt.Errorf("device %s exists and is a TAP, not a TUN: remove it or choose "+
			"another name", l.Attrs().Name)
	}
	return uint16(t.Flags) & unix.IFF_MULTI_QUEUE, nil
}

// attachTUN attaches to the persistent TUN called name, and makes it if it does not exist. It
// returns the descriptor of a queue.
func attachTUN(name string, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("open /dev/net/tun: %w: the kernel has no TUN (load module tun, or "+
			"give the container the device)", err)
	case err != nil:
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EBUSY) {
		return -1, fmt.Errorf("attach to TUN %s: %w: another process holds it", name, err)
	}
	return -1, fmt.Errorf("attach to TUN %s: %w", name, err)
}

// setUpTUN sets the group of a TUN, and the other settings if the TUN was just created.
func setUpTUN(h *nl.Handle, name string, mtu int, created bool) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if link.Attrs().Group != abi.TunnelGroup {
		if err := h.LinkSetGroup(link, int(abi.TunnelGroup)); err != nil {
			return fmt.Errorf("set group of %s: %w", name, err)
		}
	}
	if created {
		if err := h.LinkSetTxQLen(link, abi.TunnelQueueLen); err != nil {
			return fmt.Errorf("set queue of %s: %w", name, err)
		}
		if err := h.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set mtu of %s: %w", name, err)
		}
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return nil
}

// IsUp reports whether a link is set up.
func IsUp(name string) (bool, error) {
	up := false
	err := nl.OnLink(name, func(_ *nl.Handle, l nl.Link) error {
		up = l.Attrs().RawFlags&unix.IFF_UP != 0
		return nil
	})
	return up, err
}

// Remove removes the TUN called name. It does nothing if there is no such link, or if it is not a
// TUN.
func Remove(name string) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if errors.Is(err, nl.ErrNotFound) || err == nil && l.Type() != tunLink {
		return nil
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err = nl.Err(err); err != nil && !errors.Is(err, nl.ErrNotFound) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
