package engine_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// hostile is a relay between two devices that loses, duplicates, delays, reorders, corrupts and
// replays datagrams.
type hostile struct {
	conn   [2]*net.UDPConn // the device of that number sends to it
	device [2]netip.AddrPort
	mu     sync.Mutex
	r      *rand.Rand
	old    [2][][]byte // what was sent to a device, to be replayed
	calm   bool        // forwards all, in order, once
	// seen are the receivers and counters of transport messages that a device sent.
	seen   [2]map[[12]byte][]byte
	reused int
}

func newHostile(t *testing.T, seed uint64) *hostile {
	t.Helper()
	h := &hostile{r: rand.New(rand.NewPCG(seed, 7)), calm: true,
		seen: [2]map[[12]byte][]byte{{}, {}}}
	for i := range h.conn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		errtest.Must(t, err)
		h.conn[i] = c
		t.Cleanup(func() { c.Close() })
	}
	return h
}

func (h *hostile) port(i int) int { return h.conn[i].LocalAddr().(*net.UDPAddr).Port }

func (h *hostile) run() {
	for i := range h.conn {
		go h.relay(i)
	}
}

func (h *hostile) relay(i int) {
	b := make([]byte, 2048)
	for {
		n, _, err := h.conn[i].ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		h.pass(i, bytes.Clone(b[:n]))
	}
}

// pass applies the faults of a hostile network to a datagram of device i.
func (h *hostile) pass(i int, p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p[0] == 4 && len(p) >= 16 {
		id := [12]byte(p[4:16])
		if before, ok := h.seen[i][id]; ok && !bytes.Equal(before, p) {
			h.reused++
		}
		h.seen[i][id] = p
	}

	to := 1 - i
	if h.calm {
		h.send(to, p)
		return
	}

	h.old[to] = append(h.old[to], p)
	if len(h.old[to]) > 500 {
		h.old[to] = h.old[to][1:]
	}

	switch h.r.IntN(12) {
	case 0: // lost
	case 1, 2:
		h.send(to, p)
		h.send(to, p)
	case 3:
		bad := bytes.Clone(p)
		bad[h.r.IntN(len(bad))] ^= 1 << h.r.IntN(8)
		h.send(to, bad)
	case 4:
		h.send(to, h.old[to][h.r.IntN(len(h.old[to]))])
		h.send(to, p)
	case 5:
		forged := make([]byte, 1+h.r.IntN(200))
		for j := range forged {
			forged[j] = byte(h.r.Uint32())
		}
		forged[0] = byte(h.r.IntN(6))
		h.send(to, forged)
		h.send(to, p)
	case 6:
		time.AfterFunc(time.Duration(h.r.IntN(30))*time.Millisecond, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.send(to, p)
		})
	default:
		h.send(to, p)
	}
}

// send sends to a device from its peer's apparent address.
func (h *hostile) send(to int, p []byte) {
	_, _ = h.conn[to].WriteToUDPAddrPort(p, h.device[to])
}

// setCalm ends or begins the faults of the network.
func (h *hostile) setCalm(calm bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calm = calm
}

// exchanged is the number of packets that exchange sends each way.
const exchanged = 1500

// exchange sends packets each way over the hostile network and calls each after each pair. The
// packets that node i receives go to take. The network is calm afterwards.
func (h *hostile) exchange(t *testing.T, nodes []*enginetest.TunDevice, each func(number uint64),
	take func(i int, p []byte)) {
	t.Helper()
	h.setCalm(false)
	for number := range uint64(exchanged) {
		for i, n := range nodes {
			n.Send(t, datagram(false, i == 0, body(number)))
		}
		each(number)

		// The network delays packets, so that some are waited for.
		var patience time.Duration
		if number%50 == 0 {
			patience = 10 * time.Millisecond
		}
		for i, n := range nodes {
			for p := n.Receive(patience); p != nil; p = n.Receive(0) {
				take(i, p)
			}
		}
	}
	h.setCalm(true)
}

// passes checks that a packet passes each way within a time.
func passes(t *testing.T, nodes []*enginetest.TunDevice, within time.Duration,
	take func(i int, p []byte)) {
	t.Helper()
	const first = uint64(1 << 20)
	began := time.Now()
	for i, n := range nodes {
		passed := false
		for number := first; !passed && time.Since(began) < within; number++ {
			nodes[1-i].Send(t, datagram(false, i == 1, body(number)))
			for p := n.Receive(100 * time.Millisecond); p != nil; p = n.Receive(0) {
				take(i, p)
				passed = passed || binary.BigEndian.Uint64(p[28:]) >= first
			}
		}
		if !passed {
			t.Fatalf("nothing comes to node %d after the network healed: %v", i, drops(nodes))
		}
	}
}

// Over a network with all these faults, the tunnel delivers only packets that were sent, each at
// most once. No counter of a session is used for two messages, and when the network heals, traffic
// flows.
func TestHostileNetwork(t *testing.T) {
	for _, c := range combinations {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				h := newHostile(t, seed)
				a, b := c.a(t), c.b(t)
				nodes := []*enginetest.TunDevice{a, b}
				enginetest.Pair(t, a, b, false, "")

				for i, n := range nodes {
					h.device[i] = netip.MustParseAddrPort("127.0.0.1:" + n.Get(t, "listen_port")[0])
				}

				h.run()
				for i, n := range nodes {
					n.Set(t, "public_key=%x\nendpoint=127.0.0.1:%d\n", nodes[1-i].Public[:],
						h.port(i))
				}

				came := [2]map[uint64]int{{}, {}}
				check := func(i int, p []byte) {
					number := binary.BigEndian.Uint64(p[28:])
					want := datagram(false, i == 1, body(number))
					// The kernel counts IDs of packets with DF up, as a superpacket's split does.
					for _, b := range [][]byte{p, want} {
						clear(b[4:6])
						clear(b[10:12])
					}
					if !bytes.Equal(p, want) {
						t.Fatalf("packet %d was altered", number)
					}
					if came[i][number]++; came[i][number] > 1 {
						t.Fatalf("packet %d came twice", number)
					}
				}

				connect(t, a, b)
				h.exchange(t, nodes, func(uint64) {}, check)
				// 5.4 s after it heals, at the latest, a packet passes each way.
				passes(t, nodes, 12*time.Second, check)

				if h.reused > 0 {
					t.Errorf("%d counters were used for two messages", h.reused)
				}

				if len(came[0]) < exchanged/5 || len(came[1]) < exchanged/5 {
					t.Errorf("%d and %d packets came of %d: %v", len(came[0]), len(came[1]),
						exchanged, drops(nodes))
				}
			})
		}
	}
}

func drops(nodes []*enginetest.TunDevice) (out []map[string]uint64) {
	for _, n := range nodes {
		if n.Engine != nil {
			out = append(out, n.Engine.Drops())
		}
	}
	return out
}

// body is the payload of a numbered packet.
func body(number uint64) []byte {
	b := make([]byte, 8+number%900)
	binary.BigEndian.PutUint64(b, number)
	for i := 8; i < len(b); i++ {
		b[i] = byte(uint64(i) * number)
	}
	return b
}

// Ten thousand messages of garbage make no peer wait for a cookie: the first packet to an idle peer
// takes one handshake.
func TestGarbageDelaysNoHandshake(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		t.Run(ip, func(t *testing.T) {
			a, b := newEngine(t), newEngine(t)
			a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
			b.Set(t, "private_key=%x\nlisten_port=0\n", b.Private[:])
			at := net.JoinHostPort(ip, listening(t, b))
			flood, err := net.Dial("udp", at)
			errtest.Must(t, err)
			defer flood.Close()
			r := rand.New(rand.NewPCG(9, 9))
			m := make([]byte, 148)
			send := func(n int) {
				for range n {
					binary.NativeEndian.PutUint64(m[8:], r.Uint64())
					m[0] = 1
					_, _ = flood.Write(m)
				}
			}
			send(5000)
			b.Set(t, "public_key=%x\nallowed_ip=10.0.0.1/32\n", a.Public[:])
			a.Set(t, "public_key=%x\nendpoint=%s\nallowed_ip=10.0.0.2/32\n", b.Public[:], at)
			p := datagram(false, true, []byte("hello"))
			a.Send(t, p)
			send(5000)
			expect(t, b, p)
			if d := b.Engine.Drops(); d["cookie_demanded"] > 0 || d["bad_mac1"] < 300 {
				t.Errorf("dropped %v, want garbage and no demand of a cookie", d)
			}
			if a.Engine.Sessions() == 0 {
				t.Error("no session")
			}
		})
	}
}
