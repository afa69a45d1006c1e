package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// On loopback in a namespace of the test's own.
func TestCloseWhatIsConnectedThere(t *testing.T) {
	nettest.NeedRoot(t)
	for name, network := range map[string]string{"ipv4": "127.0.0.1:0", "ipv6": "[::1]:0",
		"mapped": "127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", network)
			errtest.Must(t, err)
			defer l.Close()
			other, err := net.Listen("tcp", network)
			errtest.Must(t, err)
			defer other.Close()
			to := l.Addr().(*net.TCPAddr).AddrPort()
			gone, err := connect(name == "mapped", to)
			errtest.Must(t, err)
			defer gone.Close()
			stays, err := net.Dial("tcp", other.Addr().String())
			errtest.Must(t, err)
			defer stays.Close()

			n, err := Close(unix.IPPROTO_TCP, to, nil)
			if errors.Is(err, ErrNotSupported) {
				nettest.Skip(t, nettest.NoKernelFeature, err.Error())
			}
			if err != nil || n != 1 {
				t.Fatalf("closed %d: %v, want 1", n, err)
			}
			gone.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := gone.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("its program reads %v, want %v", err, syscall.ECONNABORTED)
			}
			if _, err := stays.Write([]byte("x")); err != nil {
				t.Errorf("a connection to another port: %v", err)
			}
		})
	}
}

// connect connects, if mapped from an IPv6 socket to the mapped address.
func connect(mapped bool, to netip.AddrPort) (net.Conn, error) {
	if !mapped {
		return net.Dial("tcp", to.String())
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()),
		Addr: to.Addr().As16()}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	return net.FileConn(f)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, unix.NLMSG_ERROR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff,
		0xff})
	f.Add([]byte{16, 0, 0, 0, unix.NLMSG_DONE, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = read(b, func(body []byte) bool {
			if _, _, ok := parse(body); ok {
				storageOf(body[sizeofMessage:])
			}
			return true
		})
	})
}
