package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// imagesOf returns the images of a device whose threads do not run.
func imagesOf(t testing.TB, d *Device) images {
	t.Helper()
	b, err := d.Base()
	errtest.Must(t, err)
	defer b.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	rest, err := b.rest()
	errtest.Must(t, err)
	defer rest.Close()
	return images{counted(b.Image.Bytes), counted(rest.Bytes)}
}

// giveSession adds a session with the index local to the peer, which begins with the event e.
func giveSession(t testing.TB, d *Device, p *peer, e sessionEvent, local uint32) {
	t.Helper()
	keys, err := secret.Alloc[noise.Keys](d.arena)
	errtest.Must(t, err)
	keys.Send[0], keys.Receive[0] = byte(local), byte(local>>8)
	d.changeSessionsLocked(p, e, &session{peer: p, keys: keys, local: local, remote: local + 1,
		born: d.now()}, d.now())
	d.zeroRetired()
}

// crowd adds peers to a device, each with a session.
func crowd(t testing.TB, d *Device, peers int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.Lock()
	defer d.state.Unlock()
	for i := range peers {
		var key noise.PublicKey
		binary.BigEndian.PutUint32(key[:], uint32(i+1))
		p, err := d.newPeer(key)
		errtest.Must(t, err)
		d.mu.peers[key] = p
		d.mu.order = append(d.mu.order, p)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		p.allowed[prefix] = struct{}{}
		d.state.routes.insert(prefix, p)
		p.endpoint.Store(&sock.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:9")})
		giveSession(t, d, p, answered, uint32(i+1000))
		for c := range uint64(3000) {
			p.current.window.accept(c)
		}
	}
}

// happenings are changes of a peer that may happen between the base image and the rest. next is an
// unused index.
var happenings = map[string]func(t testing.TB, d *Device, p *peer, next uint32){
	"sends":    func(_ testing.TB, d *Device, p *peer, _ uint32) { p.sentAt(d.now(), true) },
	"receives": func(_ testing.TB, d *Device, p *peer, _ uint32) { p.receivedAt(d.now(), true) },
	"counts": func(_ testing.TB, _ *Device, p *peer, _ uint32) {
		p.rxBytes.Add(7)
		p.sentBytes.Add(9)
	},
	"sends under its session": func(_ testing.TB, _ *Device, p *peer, _ uint32) {
		if p.current != nil {
			p.current.sent.Add(3)
			p.current.used.Store(true)
		}
	},
	"receives under its session": func(_ testing.TB, _ *Device, p *peer, _ uint32) {
		if p.current != nil {
			p.current.window.accept(5000)
		}
	},
	"has another session": func(t testing.TB, d *Device, p *peer, next uint32) {
		giveSession(t, d, p, answered, next)
	},
	"has a session that waits": func(t testing.TB, d *Device, p *peer, next uint32) {
		giveSession(t, d, p, accepted, next)
	},
	"has no session": func(_ testing.TB, d *Device, p *peer, _ uint32) {
		d.changeSessionsLocked(p, over, nil, d.now())
		d.zeroRetired()
	},
	"begins a handshake": func(_ testing.TB, d *Device, p *peer, next uint32) {
		d.forgetInitiation(p)
		p.index = next
		d.waiting.put(next, p)
		p.secrets.Waiting = true
		p.lastInitiation, p.wanted, p.lastStamp = d.now(), true, noise.Timestamp{1, byte(next)}
		p.timers.began(d.now(), 1)
	},
	"ends a handshake": func(_ testing.TB, d *Device, p *peer, _ uint32) {
		d.forgetInitiation(p)
		p.lastHandshake, p.lastSeenStamp = time.Unix(5, 6), noise.Timestamp{2}
	},
	"was never heard of": func(_ testing.TB, _ *Device, p *peer, _ uint32) {
		p.lastHandshake = time.Time{}
	},
	"has no endpoint": func(_ testing.TB, _ *Device, p *peer, _ uint32) { p.endpoint.Store(nil) },
	"moves": func(_ testing.TB, d *Device, p *peer, next uint32) {
		p.move(&sock.Endpoint{Addr: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(next))}, d.now())
	},
	"waits with packets": func(_ testing.TB, d *Device, p *peer, _ uint32) {
		d.stage(p, []byte("a packet"))
		p.events.Store(wantSession)
	},
	"loses its packets": func(_ testing.TB, d *Device, p *peer, _ uint32) { d.unstage(p) },
	"is sent singly":    func(_ testing.TB, _ *Device, p *peer, _ uint32) { p.singly.Store(true) },
	"is dead":           func(_ testing.TB, _ *Device, p *peer, _ uint32) { p.dead.Store(true) },
	"has a cookie": func(_ testing.TB, _ *Device, p *peer, _ uint32) {
		p.stamper.Stamp(make([]byte, noise.InitiationSize), 0)
	},
}

// After any change of peers between the base and the rest, the successor equals the stopped device
// byte by byte. The rest has only the changed peers.
func TestRestHasWhatChangedSinceTheBase(t *testing.T) {
	const peers = 40
	names := make([]string, 0, len(happenings))
	for name := range happenings {
		names = append(names, name)
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		d := emptyDevice(t)
		crowd(t, d, peers)
		some := func(n int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for i := range n {
				p := d.mu.order[r.IntN(peers)]
				happenings[names[r.IntN(len(names))]](t, d, p, uint32(100000*(seed+1))+uint32(n*100+i))
			}
		}
		some(20)
		b, err := d.Base()
		errtest.Must(t, err)
		n := r.IntN(15)
		some(n + 20*(n/5)) // other indices than before
		d.mu.Lock()
		rest, err := b.rest()
		d.mu.Unlock()
		errtest.Must(t, err)

		other := imported(t, images{b.Image.Bytes, rest.Bytes})
		if other == nil {
			t.Fatalf("seed %d: the images are refused", seed)
		}
		want, got := imagesOf(t, d), imagesOf(t, other)
		if !bytes.Equal(want.base, got.base) || !bytes.Equal(want.rest, got.rest) {
			t.Errorf("seed %d: the successor differs", seed)
		}
		if size := len(counted(rest.Bytes)); n == 0 && size > 200+4000*waiting(d) {
			t.Errorf("seed %d: %d bytes for no change", seed, size)
		}
		have, staged := len(other.state.sessions), other.stagedBytes.Load()
		if want := len(d.state.sessions); have != want || staged != d.stagedBytes.Load() {
			t.Errorf("seed %d: %d sessions and %d bytes that wait, want %d and %d", seed,
				have, staged, want, d.stagedBytes.Load())
		}
		other.Close()
		rest.Close()
		b.Close()
	}
}

// waiting returns the number of peers with staged packets. A device made of a base has none.
func waiting(d *Device) (n int) {
	for _, p := range d.mu.order {
		n += min(1, len(p.staged.packets))
	}
	return n
}

// A rest that needs more memory than was reserved, because there are more sessions than in the
// base, is written completely.
func TestRestThatOutgrowsItsRoom(t *testing.T) {
	d := emptyDevice(t)
	crowd(t, d, 900)
	b, err := d.Base()
	errtest.Must(t, err)
	defer b.Close()

	d.mu.Lock()
	for i, p := range d.mu.order {
		for j := range p.former {
			giveSession(t, d, p, answered, uint32(1<<20+i*10+j))
		}
	}
	room := len(b.room.Bytes)
	rest, err := b.rest()
	d.mu.Unlock()
	errtest.Must(t, err)
	defer rest.Close()
	if len(counted(rest.Bytes)) <= room {
		t.Fatalf("the rest has %d bytes, the test wants more than %d", len(rest.Bytes), room)
	}

	other := imported(t, images{b.Image.Bytes, rest.Bytes})
	if other == nil || len(other.state.sessions) != len(d.state.sessions) {
		t.Fatal("the successor differs")
	}
	other.Close()
}

// A base that was made before a configuration of the device is refused, and the device goes on.
func TestBaseOfAConfiguredDeviceIsRefused(t *testing.T) {
	d := emptyDevice(t)
	crowd(t, d, 3)
	b, err := d.Base()
	errtest.Must(t, err)
	defer b.Close()
	errtest.Must(t, d.IpcSetOperation(strings.NewReader("fwmark=3\n")))
	if _, err := d.Export(b); !errors.Is(err, errConfigured) {
		t.Errorf("export: %v, want %v", err, errConfigured)
	}
	if err := d.IpcSetOperation(strings.NewReader("fwmark=4\n")); err != nil {
		t.Errorf("the device is not served any more: %v", err)
	}
}

// BenchmarkStandStill measures the work of both processes while a device with 10,000 peers that
// have sessions stands still: none of the peers changed since the base, or all of them.
func BenchmarkStandStill(b *testing.B) {
	for _, all := range []bool{false, true} {
		b.Run(map[bool]string{false: "none changed", true: "all changed"}[all], func(b *testing.B) {
			d := emptyDevice(b)
			crowd(b, d, 10000)
			for b.Loop() {
				b.StopTimer()
				base, err := d.Base()
				errtest.Must(b, err)
				next, err := Prepare(DeviceConfig{Queues: []*sock.Queue{{FD: -1}}, Tier: &aead.XCrypto,
					Link: func() (sock.Link, error) { return sock.Link{MTU: 1420}, nil }})
				if err == nil {
					err = next.ImportBase(base.Image.Bytes)
				}
				errtest.Must(b, err)
				for _, p := range d.mu.order {
					if all {
						p.current.sent.Add(1)
					}
				}
				b.StartTimer()
				d.mu.Lock()
				rest, err := base.rest()
				d.mu.Unlock()
				if err == nil {
					err = next.Import(rest.Bytes, nil)
				}
				errtest.Must(b, err)
				b.StopTimer()
				rest.Close()
				base.Close()
				next.Close()
				b.StartTimer()
			}
		})
	}
}
