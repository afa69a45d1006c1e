package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// images are the two images that a successor receives.
type images struct{ base, rest []byte }

// full returns the images of a device with data of every kind, also among the changes since the
// base.
func full(t testing.TB, d *Device) images {
	t.Helper()
	keys, err := secret.Alloc[noise.Keys](d.arena)
	errtest.Must(t, err)
	from := sock.Endpoint{Addr: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: 2,
		Source: netip.MustParseAddr("fe80::2"), Interface: 2}
	d.mu.Lock()
	for i := range byte(3) {
		p, err := d.newPeer(noise.PublicKey{9, i})
		errtest.Must(t, err)
		p.public = noise.PublicKey{9, i}
		d.mu.peers[p.public] = p
		d.mu.order = append(d.mu.order, p)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, i, 0}), 24)
		p.allowed[prefix] = struct{}{}
		d.state.routes.insert(prefix, p)
		if i == 0 {
			p.endpoint.Store(&from)
			p.index = 77
			d.waiting.put(77, p)
			p.lastHandshake = time.Unix(1000, 7)
			p.staged.packets = [][]byte{{1, 2, 3}, {4}}
			p.events.Store(wantSession)
			p.current = &session{peer: p, keys: keys, local: 5, remote: 6, born: d.now()}
			p.current.window.accept(1000)
			d.state.sessions[5] = p.current
		}
	}
	d.mu.Unlock()
	base, err := d.Base()
	errtest.Must(t, err)
	d.mu.Lock()
	d.state.sessions[5].sent.Store(12345)
	d.mu.Unlock()
	msg := make([]byte, noise.CookieSize)
	msg[0] = noise.TypeCookie
	d.ring.put(msg, &from, d.now())

	h, err := d.Export(base)
	errtest.Must(t, err)
	out := images{counted(base.Image.Bytes), counted(h.Image.Bytes)}
	h.Resume(errors.New("only looked at"))
	return out
}

// counted returns a copy of the bytes of an image that its head counts.
func counted(image []byte) []byte {
	return bytes.Clone(image[:binary.NativeEndian.Uint64(image[headSize-8:])])
}

// imported returns a device made of images, closed when the test ends, or nil if one is malformed.
func imported(t testing.TB, of images) *Device {
	t.Helper()
	var p [2]int
	errtest.Must(t, unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	d, err := Prepare(DeviceConfig{Queues: []*sock.Queue{{FD: p[0]}}, Tier: &aead.XCrypto,
		Link: func() (sock.Link, error) { return sock.Link{MTU: 1420}, nil }})
	errtest.Must(t, err)
	if err = d.ImportBase(of.base); err == nil {
		err = d.Import(of.rest, nil)
	}
	if err != nil {
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
	delete(d.state.sessions, s.local)
	d.state.routes = routes{}
	d.mu.Unlock()
	return d
}

// An image that is truncated, or that has further bytes at its end, is refused.
func TestTruncatedImageIsRefused(t *testing.T) {
	whole := full(t, emptyDevice(t))
	if d := imported(t, whole); d == nil {
		t.Fatal("the images themselves are refused")
	} else {
		if p := d.mu.order[0]; d.state.sessions[5] != p.current || p.current.sent.Load() != 12345 ||
			p.current.window.accept(1000) || len(p.staged.packets) != 2 || d.ring.n != 1 {
			t.Error("the device differs")
		}
		d.Close()
	}

	for _, tc := range []struct {
		name  string
		image []byte
		with  func(image []byte) images
	}{
		{"base", whole.base, func(b []byte) images { return images{b, whole.rest} }},
		{"rest", whole.rest, func(b []byte) images { return images{whole.base, b} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused := func(image []byte) {
				t.Helper()
				if d := imported(t, tc.with(image)); d != nil {
					d.Close()
					t.Fatalf("an image of %d bytes of %d is taken", len(image), len(tc.image))
				}
			}
			for n := range len(tc.image) {
				if n > 300 && n%7 != 0 && n < len(tc.image)-300 {
					continue
				}
				refused(tc.image[:n])
				short := bytes.Clone(tc.image)
				binary.NativeEndian.PutUint64(short[headSize-8:], uint64(n))
				refused(short)
			}
			long := append(bytes.Clone(tc.image), 0)
			binary.NativeEndian.PutUint64(long[headSize-8:], uint64(len(long)))
			refused(long)
		})
	}
}

// edited returns images with edits: four bytes each, what is done, where, and a value. The input of
// a fuzzer is short so: it tries to make each interesting one smaller, byte by byte, for up to a
// minute, and ran nothing else while it did that with whole images.
func edited(whole images, edits []byte) images {
	parts := [2][]byte{bytes.Clone(whole.base), bytes.Clone(whole.rest)}
	const most = 64
	for range most {
		if len(edits) < 4 {
			break
		}
		part := &parts[edits[0]&1]
		at := int(edits[1])<<8 | int(edits[2])
		value := edits[3]
		if len(*part) > 0 {
			at %= len(*part)
			switch edits[0] >> 1 % 4 {
			case 0:
				(*part)[at] ^= value
			case 1:
				*part = (*part)[:at]
			case 2:
				*part = slices.Insert(*part, at, bytes.Repeat([]byte{value}, 8)...)
			case 3:
				*part = slices.Delete(*part, at, min(at+int(value), len(*part)))
			}
		}
		edits = edits[4:]
	}

	for _, b := range parts {
		// What is left of the edits may leave it as it is: the size is a field as any other.
		if len(b) >= headSize && (len(edits) == 0 || edits[0]&1 == 0) {
			binary.NativeEndian.PutUint64(b[headSize-8:], uint64(len(b)))
		}
	}
	return images{parts[0], parts[1]}
}

// Images with any bytes make a device or are refused, without a crash.
func FuzzImage(f *testing.F) {
	whole := full(f, emptyDevice(f))
	f.Add([]byte{})
	f.Add([]byte{0, 0, 40, 1})
	f.Add([]byte{1, 1, 0, 7, 2, 1, 0, 0})
	f.Add([]byte{5, 0, 90, 1, 7, 0, 80, 8, 1})
	f.Fuzz(func(t *testing.T, edits []byte) {
		d := imported(t, edited(whole, edits))
		if d == nil {
			return
		}
		defer d.Close()

		// The imported device can be exported and imported again.
		if other := imported(t, imagesOf(t, d)); other == nil {
			t.Error("the images of the device are refused")
		} else {
			other.Close()
		}
	})
}
