package tunlink

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// A TUN that another release made is attached with its own flags, as often as a
// device process begins, and keeps its MTU and its ifindex.
func TestOpenTUNTakesTheFlagsOfAnExistingOne(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uint16
		want  string // in the error; empty means no error
	}{
		{"one queue", unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR, ""},
		{"several queues", unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE,
			""},
		{"several queues without offloads", unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE,
			""},
		{"packet information", unix.IFF_TUN, ""},
		{"a TAP", unix.IFF_TAP | unix.IFF_NO_PI, "is a TAP"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := nettest.NewNS(t)
			nettest.NeedTUN(t)
			ns.Run(t, func() error {
				if err := persistentTUN("veil0", tc.flags); err != nil {
					return err
				}

				h, err := nl.Open()
				if err != nil {
					return err
				}
				defer h.Close()
				before, err := h.LinkByName("veil0")
				if err != nil {
					return err
				}
				if err := h.LinkSetMTU(before, 1337); err != nil {
					return err
				}

				for range 2 {
					dev, err := Open("veil0", 1440)
					if tc.want != "" {
						if err == nil || !strings.Contains(err.Error(), tc.want) {
							t.Errorf("open: %v, want %q", err, tc.want)
						}
						return nil
					}
					if err != nil {
						return err
					}
					if err := dev.Close(); err != nil {
						return err
					}
				}

				after, err := h.LinkByName("veil0")
				if err == nil && (after.Attrs().Index != before.Attrs().Index ||
					after.Attrs().MTU != 1337) {
					err = fmt.Errorf("the device is another or has another MTU: %+v", after.Attrs())
				}

				return err
			})
		})
	}
}

// persistentTUN makes a device with exactly those flags, which no process holds then.
func persistentTUN(name string, flags uint16) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}
