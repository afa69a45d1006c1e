package engine

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// quiet returns a device with a session of index 1, whose threads do not run.
func quiet(t testing.TB) (*Device, *session) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	errtest.Must(t, err)

	d, err := Prepare(DeviceConfig{Queues: []*sock.Queue{{FD: fds[0]}}, Tier: &aead.XCrypto,
		Link: func() (sock.Link, error) { return sock.Link{MTU: 1420}, nil },
		Log:  slog.New(slog.DiscardHandler)})
	errtest.Must(t, err)

	t.Cleanup(func() {
		d.Abandon()
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	keys, err := secret.Alloc[noise.Keys](d.arena)
	errtest.Must(t, err)

	p := &peer{stamper: noise.NewStamper(noise.PublicKey{})}
	s := &session{peer: p, keys: keys, local: 1, born: d.now()}
	p.current = s
	d.state.Lock()
	d.state.sessions[1] = s
	d.state.routes.insert(netip.MustParsePrefix("10.0.0.0/8"), p)
	d.state.routes.insert(netip.MustParsePrefix("fd00::/8"), p)
	d.state.Unlock()

	return d, s
}

// A GRO run of any bytes and any size of segments is counted, delivered or dropped. Authentic
// messages may hold any inner packet.
func FuzzReceive(f *testing.F) {
	d, s := quiet(f)
	empty := make([]byte, minTransport)
	empty[0], empty[4] = 4, 1
	f.Add(empty, uint16(32), false)
	inner := append([]byte{0x45, 0, 0, 28}, make([]byte, 28)...)
	f.Add(inner, uint16(32), true)
	f.Add(make([]byte, 148), uint16(148), false)
	w, err := aead.NewWorker(d.arena)
	errtest.Must(f, err)

	f.Fuzz(func(t *testing.T, in []byte, size uint16, authentic bool) {
		if len(in) == 0 || len(in) > 60000 {
			return
		}

		data := append([]byte(nil), in...)
		if authentic {
			text := append([]byte(nil), in...)
			data = make([]byte, headerSize+len(text)+aead.Overhead)
			binary.LittleEndian.PutUint32(data, noise.TypeTransport)
			binary.LittleEndian.PutUint32(data[4:], 1)
			s.mu.Lock()
			next := s.window.next
			s.mu.Unlock()
			binary.LittleEndian.PutUint64(data[8:], next)
			copy(data[headerSize:], text)
			d.tier.Seal(w, &s.keys.Receive, []aead.Packet{{Data: data[headerSize:], Counter: next}})
			size = uint16(min(len(data), 65535))
		}

		m := &sock.Message{Data: data, Size: max(1, int(size)),
			From: sock.Endpoint{Addr: netip.MustParseAddrPort("127.0.0.1:9")}}
		r := d.shards[0].rx
		d.state.RLock()
		defer d.state.RUnlock()
		r.last, r.lastPeer = nil, nil

		now := d.now()
		for rest := m.Data; len(rest) > 0; {
			n := min(m.Size, len(rest))
			r.datagram(rest[:n], m, now)
			rest = rest[n:]
		}

		r.batch, r.turn = d.turns.draw(), false
		r.deliverAll(now)
		r.join.Flush()
		d.turns.done()
	})
}

// Counters have 64 bits, on the wire and in the window.
func TestCounterHas64Bits(t *testing.T) {
	d, s := quiet(t)
	s.sent.Store(1<<40 + 5)
	if c, ok := s.take(3); !ok || c != 1<<40+5 {
		t.Errorf("counter %d", c)
	}
	if !s.window.accept(1<<40) || !s.window.accept(1<<41) || s.window.accept(1<<40) {
		t.Error("the window takes counters apart by their low bits")
	}
	_ = d
}

// Indexes cannot be guessed from earlier ones, as the successive states of a shift register could.
func TestIndexesAreRandom(t *testing.T) {
	d, _ := quiet(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[uint32]bool{}
	ones := 0
	for range 4000 {
		i := d.newIndex()
		if seen[i] {
			t.Fatal("an index came twice among 4,000")
		}
		seen[i] = true
		for b := range 32 {
			ones += int(i >> b & 1)
		}
	}
	if ones < 63000 || ones > 65000 {
		t.Errorf("%d of 128,000 bits are set", ones)
	}
}

// Initiations are repeated at times that differ from peer to peer.
func TestRepetitionsHaveJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		var tm timers
		tm.began(time.Hour, randomJitter())
		if tm.retransmit < time.Hour+rekeyTimeout ||
			tm.retransmit > time.Hour+rekeyTimeout+maxJitter {
			t.Fatalf("repeated after %s", tm.retransmit-time.Hour)
		}
		seen[tm.retransmit] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different times of 100", len(seen))
	}
}
