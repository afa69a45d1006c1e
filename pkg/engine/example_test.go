package engine_test

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// Two devices of one process carry a packet from one to the other. Each is configured by the text
// that wg(8) would send, and has a socket in place of its TUN.
func ExampleNew() {
	a, b := newEnd(), newEnd()
	defer a.close()
	defer b.close()

	a.set("public_key=%x\nendpoint=127.0.0.1:%s\nallowed_ip=10.0.0.2/32\n", b.public, b.port())
	b.set("public_key=%x\nendpoint=127.0.0.1:%s\nallowed_ip=10.0.0.1/32\n", a.public, a.port())

	a.send(datagram(false, true, []byte("hello from 10.0.0.1")))
	const headers = 20 + 8 // of IPv4 and UDP
	fmt.Printf("%s\n", b.receive()[headers:])
	// Output: hello from 10.0.0.1
}

// end is a device, and the far side of its TUN.
type end struct {
	device *engine.Device
	queue  int
	tun    *os.File
	public []byte
}

func newEnd() *end {
	fds := must(unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	device := must(engine.New(engine.DeviceConfig{
		Queues: []*sock.Queue{{FD: fds[0]}}, UDPOffload: true,
		Link: func() (sock.Link, error) { return sock.Link{Up: true, MTU: 1420}, nil },
		Log:  slog.New(slog.DiscardHandler),
	}))

	private := must(ecdh.X25519().GenerateKey(rand.Reader))
	e := &end{device: device, queue: fds[0], tun: os.NewFile(uintptr(fds[1]), "tun"),
		public: private.PublicKey().Bytes()}
	e.set("private_key=%x\nlisten_port=0\n", private.Bytes())
	return e
}

func (e *end) set(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if err := e.device.IpcSetOperation(strings.NewReader(text)); err != nil {
		panic(err)
	}
}

// port returns the UDP port that the device has opened.
func (e *end) port() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var port string
	err := poll.Until(ctx, time.Millisecond, 10*time.Millisecond, func() error {
		var b bytes.Buffer
		if err := e.device.IpcGetOperation(&b); err != nil {
			return poll.Stop(err)
		}
		for line := range strings.Lines(b.String()) {
			var ok bool
			if port, ok = strings.CutPrefix(strings.TrimSpace(line), "listen_port="); ok {
				return nil
			}
		}
		return errors.New("the device opens no socket")
	})
	if err != nil {
		panic(err)
	}
	return port
}

// send writes an IP packet to the TUN, behind a vnet header.
func (e *end) send(p []byte) {
	must(e.tun.Write(append(make([]byte, packet.HeaderSize), p...)))
}

// receive returns the next IP packet that comes out of the TUN.
func (e *end) receive() []byte {
	if err := e.tun.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		panic(err)
	}
	b := make([]byte, 1<<16)
	n := must(e.tun.Read(b))
	return b[packet.HeaderSize:n]
}

func (e *end) close() {
	e.device.Close()
	e.tun.Close()
	unix.Close(e.queue)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
