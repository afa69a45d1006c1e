package engine

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// full returns the image of a device that has something of everything.
func full(t testing.TB, d *Device) []byte {
	t.Helper()
	keys, err := secret.Alloc[noise.Keys](d.arena)
	if err != nil {
		t.Fatal(err)
	}
	from := sock.Endpoint{Addr: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: 2,
		Source: netip.MustParseAddr("fe80::2"), Interface: 2}
	d.mu.Lock()
	for i := range byte(3) {
		p, err := d.newPeer(noise.PublicKey{9, i})
		if err != nil {
			t.Fatal(err)
		}
		p.public = noise.PublicKey{9, i}
		d.peers[p.public] = p
		d.order = append(d.order, p)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, i, 0}), 24)
		p.allowed[prefix] = struct{}{}
		d.routes.insert(prefix, p)
		if i == 0 {
			p.endpoint.Store(&from)
			p.index = 77
			d.waiting.put(77, p)
			p.lastHandshake = time.Unix(1000, 7)
			p.staged.packets = [][]byte{{1, 2, 3}, {4}}
			p.events.Store(wantSession)
			p.current = &session{peer: p, keys: keys, local: 5, remote: 6, born: d.now()}
			p.current.window.accept(1000)
			p.current.sent.Store(12345)
			d.sessions[5] = p.current
		}
	}
	d.mu.Unlock()
	msg := make([]byte, noise.CookieSize)
	msg[0] = noise.TypeCookie
	d.ring.put(msg, &from, d.now())

	h, err := d.Export()
	if err != nil {
		t.Fatal(err)
	}
	image := bytes.Clone(h.Image.Bytes)
	h.Resume(errors.New("only looked at"))
	return image
}

// imported is a device made of an image, closed when the test ends; nil if the image is malformed.
func imported(t testing.TB, image []byte) *Device {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	d, err := Prepare(Options{Queues: []*sock.Queue{{FD: p[0]}}, Tier: &aead.XCrypto,
		Link: func() (sock.Link, error) { return sock.Link{MTU: 1420}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Import(image, nil); err != nil {
		d.Abandon()
		if !errors.Is(err, ErrMalformed) {
			t.Fatalf("import: %v", err)
		}
		t.Log(err)
		return nil
	}
	return d
}

func emptyDevice(t testing.TB) *Device {
	d, s := quiet(t)
	d.mu.Lock()
	delete(d.sessions, s.local)
	d.routes = routes{}
	d.mu.Unlock()
	return d
}

// An image is read whole or not at all: each that ends early is refused, and one behind which
// something follows.
func TestTruncatedImageIsRefused(t *testing.T) {
	image := full(t, emptyDevice(t))
	if d := imported(t, image); d == nil {
		t.Fatal("the image itself is refused")
	} else {
		if p := d.order[0]; d.sessions[5] != p.current || p.current.sent.Load() != 12345 ||
			p.current.window.accept(1000) || len(p.staged.packets) != 2 || d.ring.n != 1 {
			t.Error("the device differs")
		}
		d.Close()
	}

	for n := range len(image) {
		if n > 300 && n%7 != 0 && n < len(image)-300 {
			continue
		}
		if d := imported(t, image[:n]); d != nil {
			d.Close()
			t.Fatalf("an image of %d bytes of %d is taken", n, len(image))
		}
	}
	if d := imported(t, append(image, 0)); d != nil {
		d.Close()
		t.Error("an image that something follows is taken")
	}
}

// An image of any bytes makes a device or is refused, without a crash.
func FuzzImage(f *testing.F) {
	image := full(f, emptyDevice(f))
	f.Add(image, uint16(0), byte(0))
	f.Add(image, uint16(40), byte(1))
	f.Fuzz(func(t *testing.T, image []byte, at uint16, by byte) {
		if len(image) > 0 {
			image = bytes.Clone(image)
			image[int(at)%len(image)] ^= by
		}

		d := imported(t, image)
		if d == nil {
			return
		}

		// What was taken can be handed on.
		d.mu.Lock()
		again, err := d.image()
		d.mu.Unlock()
		if err != nil || len(again.Bytes) != len(image) {
			t.Errorf("the image of the device: %v", err)
		} else if other := imported(t, again.Bytes); other == nil {
			t.Error("the image of the device is refused")
		} else {
			other.Close()
		}
		again.Close()
		d.Close()
	})
}
