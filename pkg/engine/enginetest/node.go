package enginetest

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/curve25519"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// MTU is the MTU of every TunDevice.
const MTU = 1420

// Device has the methods that all kinds of device have.
type Device interface {
	IpcGetOperation(w io.Writer) error
	IpcSetOperation(r io.Reader) error
	Close()
}

// TunDevice is a device with its TUN.
type TunDevice struct {
	Device
	// Engine is the device if it is of package engine, otherwise nil.
	Engine *engine.Device
	// Private and Public are the keys of the device.
	Private, Public [32]byte
	// Up is the state of the link for the engine. It is nil for other kinds.
	Up *atomic.Bool

	send    func(p []byte) error
	receive chan []byte
	far     int // the test's end of the socket pair that stands for the TUN; -1 for other kinds
	queue   int // the engine's end of the socket pair
	options engine.DeviceConfig
	// imported are the sockets that the last Import used.
	imported []int
}

func (n *TunDevice) key() {
	rand.Read(n.Private[:])
	n.Private[0] &= 248
	n.Private[31] = n.Private[31]&127 | 64
	p, err := curve25519.X25519(n.Private[:], curve25519.Basepoint)
	if err != nil {
		panic(err) // The base point is of large order.
	}
	n.Public = [32]byte(p)
}

// NewEngine returns a TunDevice with a device of package engine, closed when the test ends.
func NewEngine(t testing.TB, change ...func(*engine.DeviceConfig)) *TunDevice {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|
		unix.SOCK_NONBLOCK, 0)
	errtest.Must(t, err)

	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	}

	n := &TunDevice{receive: make(chan []byte, 1<<14), far: fds[1], queue: fds[0],
		Up: new(atomic.Bool)}
	n.Up.Store(true)
	n.key()
	o := engine.DeviceConfig{
		Queues: []*sock.Queue{{FD: fds[0]}}, UDPOffload: true,
		Link: func() (sock.Link, error) { return sock.Link{Up: n.Up.Load(), MTU: MTU}, nil },
		Log:  slog.New(slog.NewTextHandler(logTo{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}

	for _, c := range change {
		c(&o)
	}

	if n.Engine, err = engine.New(o); err != nil {
		t.Fatal(err)
	}

	n.Device, n.options = n.Engine, o
	// Closing an os.File that the runtime polls ends its reader.
	file := os.NewFile(uintptr(fds[1]), "tun")
	go n.read(file)
	n.send = func(p []byte) error { return n.SendSuper(packet.Header{}, p) }
	t.Cleanup(func() {
		n.Close()
		file.Close()
		unix.Close(fds[0])
	})

	return n
}

// Import makes another engine from the export of the node's engine. Like another process, it has
// its own descriptors. The caller passes it to Use or Abandon.
func (n *TunDevice) Import(t testing.TB, h *engine.Handover) (*engine.Device, error) {
	t.Helper()
	base, err := secret.OpenSealed(duplicate(t, h.Base.Image.FD))
	errtest.Must(t, err)
	defer base.Close()
	image, err := secret.OpenSealed(duplicate(t, h.Image.FD))
	errtest.Must(t, err)
	defer image.Close()

	var sockets []int
	for _, fd := range h.Sockets() {
		sockets = append(sockets, duplicate(t, fd))
	}

	o := n.options
	o.Queues = []*sock.Queue{{FD: n.queue}}
	d, err := engine.Prepare(o)
	errtest.Must(t, err)
	n.imported = sockets
	if err := d.ImportBase(base.Bytes); err != nil {
		n.Abandon(d)
		return nil, err
	}
	if err := d.Import(image.Bytes, sockets); err != nil {
		n.Abandon(d)
		return nil, err
	}
	return d, nil
}

// Abandon ends the engine that Import returned last.
func (n *TunDevice) Abandon(d *engine.Device) {
	d.Abandon()
	closeAll(n.imported)
}

// Restart makes a new engine for the node, without any state of the old one, like a restarted
// process.
func (n *TunDevice) Restart(t testing.TB) {
	t.Helper()
	o := n.options
	o.Queues = []*sock.Queue{{FD: n.queue}}
	d, err := engine.New(o)
	errtest.Must(t, err)
	n.Use(d)
}

// Use makes d the engine of the node.
func (n *TunDevice) Use(d *engine.Device) { n.Device, n.Engine = d, d }

func duplicate(t testing.TB, fd int) int {
	t.Helper()
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	errtest.Must(t, err)
	return other
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// logTo writes the log of a device to the log of a test.
type logTo struct{ t testing.TB }

func (l logTo) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// read reads what the engine writes to its TUN, and splits it into packets.
func (n *TunDevice) read(file *os.File) {
	b := make([]byte, 1<<17)
	for {
		l, err := file.Read(b)
		if err != nil {
			return
		}
		s, bad := packet.Parse(packet.ReadHeader(b), bytes.Clone(b[packet.HeaderSize:l]))
		if bad != packet.None {
			panic(fmt.Sprintf("the engine wrote a packet that is malformed: %v", bad))
		}
		for i := range s.Segments {
			p := make([]byte, s.SegmentLen(i))
			s.Segment(i, p)
			select {
			case n.receive <- p:
			default:
			}
		}
	}
}

// SendSuper writes a packet with a vnet header to the engine's TUN.
func (n *TunDevice) SendSuper(h packet.Header, p []byte) error {
	b := make([]byte, packet.HeaderSize+len(p))
	h.Write(b)
	copy(b[packet.HeaderSize:], p)
	_, err := unix.Write(n.far, b)
	return err
}

// NewReference returns a TunDevice with a device of wireguard-go, closed when the test ends.
func NewReference(t testing.TB) *TunDevice {
	t.Helper()
	n := &TunDevice{receive: make(chan []byte, 1<<14), far: -1}
	n.key()
	ct := tuntest.NewChannelTUN()
	dev := device.NewDevice(ct.TUN(), conn.NewStdNetBind(),
		&device.Logger{Verbosef: device.DiscardLogf,
			Errorf: func(f string, a ...any) { t.Logf("wireguard-go: "+f, a...) }})
	errtest.Must(t, dev.Up())

	n.Device = dev
	end := make(chan struct{})
	go func() {
		for {
			select {
			case p := <-ct.Inbound:
				select {
				case n.receive <- p:
				default:
				}
			case <-end:
				return
			}
		}
	}()

	n.send = func(p []byte) error {
		select {
		case ct.Outbound <- p:
			return nil
		case <-time.After(5 * time.Second):
			return fmt.Errorf("wireguard-go does not read its TUN")
		}
	}

	t.Cleanup(func() {
		close(end)
		dev.Close()
	})
	return n
}

// Send writes an IP packet to the TUN.
func (n *TunDevice) Send(t testing.TB, p []byte) {
	t.Helper()
	errtest.Must(t, n.send(p))
}

// TrySend is Send, but returns an error instead of ending the test.
func (n *TunDevice) TrySend(p []byte) error { return n.send(p) }

// Receive returns the next packet that came out of the tunnel, or nil if none comes within d.
func (n *TunDevice) Receive(d time.Duration) []byte {
	select {
	case p := <-n.receive:
		return p
	case <-time.After(d):
		return nil
	}
}

// Set applies a "set" of the configuration protocol.
func (n *TunDevice) Set(t testing.TB, format string, args ...any) {
	t.Helper()
	errtest.Must(t, n.IpcSetOperation(strings.NewReader(fmt.Sprintf(format, args...))))
}

// Get returns the values of all lines with the key in the answer to a "get".
func (n *TunDevice) Get(t testing.TB, key string) []string {
	t.Helper()
	var b bytes.Buffer
	errtest.Must(t, n.IpcGetOperation(&b))
	var out []string
	for line := range strings.Lines(b.String()) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k == key {
			out = append(out, v)
		}
	}
	return out
}

// Pair configures two nodes as peers of each other over IPv4 or IPv6 loopback. The first has the
// inner addresses 10.0.0.1 and fd00::1, the second 10.0.0.2 and fd00::2. extra is appended to the
// section of each peer.
func Pair(t testing.TB, a, b *TunDevice, v6 bool, extra string) {
	t.Helper()
	host := netip.MustParseAddr("127.0.0.1")
	if v6 {
		host = netip.IPv6Loopback()
	}
	for _, n := range []*TunDevice{a, b} {
		n.Set(t, "private_key=%s\nlisten_port=0\n", hex.EncodeToString(n.Private[:]))
		for end := time.Now().Add(5 * time.Second); len(n.Get(t, "listen_port")) == 0; time.Sleep(
			time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the device opens no socket")
			}
		}
	}
	for i, n := range []*TunDevice{a, b} {
		o := []*TunDevice{b, a}[i]
		n.Set(t,
			"public_key=%x\nendpoint=%s:%s\nallowed_ip=10.0.0.%d/32\nallowed_ip=fd00::%d/128\n%s",
			o.Public[:],
			hostText(host), o.Get(t, "listen_port")[0], 2-i, 2-i, extra)
	}
}

func hostText(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// Initiation returns an initiation to the owner of public, with a valid MAC1, from a random key.
func Initiation(t testing.TB, public [32]byte) []byte {
	t.Helper()
	arena := new(secret.Arena)
	t.Cleanup(func() { arena.Close() })
	id, err := noise.NewIdentity(arena)
	errtest.Must(t, err)
	var key [32]byte
	rand.Read(key[:])
	id.SetPrivate(&key)
	s, err := secret.Alloc[noise.Secrets](arena)
	errtest.Must(t, err)
	remote := noise.PublicKey(public)
	id.Precompute(s, &remote)
	var msg [noise.InitiationSize]byte
	if err := id.Initiate(s, &remote, 1, noise.Timestamp{1}, &msg); err != nil {
		t.Fatal(err)
	}
	noise.NewStamper(remote).Stamp(msg[:], 0)
	return msg[:]
}
