package engine_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// withShards sets the number of shards of a device. Only the first queue of the TUN gets packets.
// Packets that are written to other queues reach the reader of the first queue.
func withShards(t testing.TB, shards int) func(*engine.DeviceConfig) {
	return func(o *engine.DeviceConfig) {
		for range shards - 1 {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|
				unix.SOCK_CLOEXEC, 0)
			errtest.Must(t, err)
			t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
			o.Queues = append(o.Queues, &sock.Queue{FD: fds[0]})
		}
	}
}

// A device owns its port for any number of shards: another device gets an error. Another process of
// the same user cannot share it, not for one address or link either.
func TestPortIsExclusive(t *testing.T) {
	for _, shards := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			a, b := enginetest.NewEngine(t, withShards(t, shards)),
				enginetest.NewEngine(t, withShards(t, shards))
			a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private)
			port := listening(t, a)
			listening(t, b)
			err := b.IpcSetOperation(strings.NewReader("listen_port=" + port + "\n"))
			if !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("another device asks for port %s: %v, want %v", port, err, unix.EADDRINUSE)
			}

			n, err := strconv.Atoi(port)
			errtest.Must(t, err)
			for name, to := range map[string]unix.Sockaddr{
				"IPv4":                unix.Sockaddr(&unix.SockaddrInet4{Port: n}),
				"IPv4 of one address": &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}},
				"IPv6":                &unix.SockaddrInet6{Port: n},
				"IPv6 of one address": &unix.SockaddrInet6{Port: n, Addr: [16]byte{15: 1}},
			} {
				for _, link := range []string{"", "lo"} {
					if err := share(to, link); !errors.Is(err, unix.EADDRINUSE) {
						t.Errorf("%s, link %q: another socket shares the port: %v, want %v", name, link,
							err, unix.EADDRINUSE)
					}
				}
			}
		})
	}
}

// share binds a socket that shares its port, of one link if there is one.
func share(to unix.Sockaddr, link string) error {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, option := range []int{unix.SO_REUSEPORT, unix.SO_REUSEADDR} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if link != "" {
		if err := unix.BindToDevice(fd, link); err != nil {
			return err
		}
	}
	return unix.Bind(fd, to)
}
