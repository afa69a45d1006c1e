package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/memtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// export stops the engine of a node and returns its state.
func export(t *testing.T, n *enginetest.TunDevice) *engine.Handover {
	t.Helper()
	base, err := n.Engine.Base()
	errtest.Must(t, err)
	h, err := n.Engine.Export(base)
	if err != nil {
		base.Close()
		t.Fatal(err)
	}
	return h
}

// successor returns an engine for a node that goes on with a state.
func successor(t *testing.T, n *enginetest.TunDevice, h *engine.Handover) *engine.Device {
	t.Helper()
	next, err := n.Import(t, h)
	errtest.Must(t, err)
	return next
}

// handOver replaces the engine of a node by one that goes on with its state.
func handOver(t *testing.T, n *enginetest.TunDevice) {
	t.Helper()
	h := export(t, n)
	next, err := n.Import(t, h)
	if err != nil {
		h.Resume(err)
		t.Fatal(err)
	}
	h.Commit()
	next.Start()
	n.Use(next)
}

// config returns the configuration and the counters of a node.
func config(t *testing.T, n *enginetest.TunDevice) string {
	t.Helper()
	var b bytes.Buffer
	errtest.Must(t, n.IpcGetOperation(&b))
	return b.String()
}

// A device that was handed over goes on with its configuration, its counters and its sessions.
func TestHandoverLosesNothing(t *testing.T) {
	for _, c := range combinations {
		t.Run(c.name, func(t *testing.T) {
			a, b := c.a(t), c.b(t)
			enginetest.Pair(t, a, b, false, "persistent_keepalive_interval=25\n")
			p, back := datagram(false, true, []byte("hello")), datagram(false, false, []byte("back"))
			connect(t, a, b)
			settle2(t, a, b)

			for _, n := range []*enginetest.TunDevice{a, b} {
				if n.Engine == nil {
					continue
				}
				for range 3 {
					sessions, handshakes := n.Engine.Sessions(), n.Get(t, "last_handshake_time_nsec")
					h := export(t, n)

					// Packets that arrive during the handover wait in queues of the kernel.
					a.Send(t, p)
					b.Send(t, back)
					next := successor(t, n, h)

					h.Commit()
					next.Start()
					n.Use(next)
					expect(t, b, p)
					expect(t, a, back)
					if next.Sessions() != sessions ||
						fmt.Sprint(n.Get(t, "last_handshake_time_nsec")) != fmt.Sprint(handshakes) {
						t.Error("there was another handshake")
					}
					if d := next.Drops(); len(d) > 0 {
						t.Errorf("dropped %v", d)
					}
				}
			}
		})
	}
}

// settle2 is like settle, but the nodes may have another engine.
func settle2(t *testing.T, nodes ...*enginetest.TunDevice) {
	t.Helper()
	for _, n := range nodes {
		if n.Engine != nil {
			settle(t, n)
		}
	}
}

// The successor has the configuration of the device.
func TestHandoverKeepsTheConfiguration(t *testing.T) {
	n := enginetest.NewEngine(t)
	n.Set(t, "private_key=%x\nlisten_port=0\nfwmark=7\n", n.Private)
	listening(t, n)
	for i := range 20 {
		n.Set(t, "public_key=%064x\npreshared_key=%064x\nendpoint=127.0.0.1:9\nallowed_ip=10.%d.0.0/16\n"+
			"allowed_ip=fd00:%x::/32\npersistent_keepalive_interval=%d\n", i+9, i+1, i, i, i)
	}

	n.Set(t, "public_key=%064x\nendpoint=[::1]:77\n", 9)
	n.Up.Store(false) // so that nothing is sent and counted meanwhile
	nettest.Until(t, 5*time.Second, "the end of the sockets", func() bool {
		return !n.Engine.IsUp()
	})

	before := config(t, n)
	handOver(t, n)
	if after := config(t, n); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	n.Up.Store(true)
	listening(t, n)
}

// A successor that gives up before the device commits changes nothing: the device goes on, with its
// sessions and at its counters.
func TestDeviceGoesOnAfterAFailedHandover(t *testing.T) {
	a, b, p := greeted(t)
	settle(t, a, b)
	sessions := a.Engine.Sessions()

	for i := range 5 {
		h := export(t, a)
		a.Send(t, p)
		next := successor(t, a, h)
		a.Abandon(next)
		h.Resume(errors.New("no answer"))
		expect(t, b, p)
		if got := a.Engine.Drops()["handover_abandoned"]; got != uint64(i+1) {
			t.Errorf("%d failures counted, want %d", got, i+1)
		}
	}

	h := export(t, a)
	h.Resume(fmt.Errorf("successor: %w", engine.ErrMalformed))
	if got := a.Engine.Drops()["handover_malformed"]; got != 1 {
		t.Errorf("%d malformed states counted, want 1", got)
	}
	if a.Engine.Sessions() != sessions {
		t.Error("there was another handshake")
	}
}

func TestDeviceThatWasHandedOverTakesNoConfiguration(t *testing.T) {
	n := enginetest.NewEngine(t)
	old := n.Engine
	handOver(t, n)
	if old.IpcSetOperation(bytes.NewReader([]byte("fwmark=1\n"))) == nil ||
		old.IpcGetOperation(&bytes.Buffer{}) == nil {
		t.Error("it answers")
	}
	if _, err := old.Base(); err == nil {
		t.Error("it is handed over twice")
	}
	old.Close()
}

// A handover does not change the age of a session: the session is renewed in time, and is not used
// after 180 s.
func TestHandoverKeepsTheAgeOfSessions(t *testing.T) {
	var c clock
	a, b, p := greeted(t, withClock(&c))
	settle(t, a, b)
	before := a.Engine.Sessions()
	c.pass(100 * time.Second)
	handOver(t, a)
	c.pass(81 * time.Second)
	handOver(t, b)
	a.Send(t, p)
	expect(t, b, p)
	if a.Engine.Sessions() == before {
		t.Error("the packet came under a session of 181 s")
	}
}

// Packets that wait for a session wait at the successor, and a handshake in flight succeeds there.
func TestHandoverInTheMiddleOfAHandshake(t *testing.T) {
	a, b := enginetest.NewEngine(t), enginetest.NewEngine(t)
	enginetest.Pair(t, a, b, false, "")
	settle(t, a, b)
	var want [][]byte
	h := newHostile(t, 1)
	h.device = [2]netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:" + listening(t, a)),
		netip.MustParseAddrPort("127.0.0.1:" + listening(t, b))}

	// The peer is removed and added again, so the device has no session with it.
	a.Set(t, "public_key=%x\nremove=true\n", b.Public)
	a.Set(t, "public_key=%x\nendpoint=127.0.0.1:%d\nallowed_ip=10.0.0.2/32\n", b.Public, h.port(0))
	for i := range 10 {
		p := datagram(false, true, []byte{byte(i), 1, 2, 3})
		want = append(want, p)
		a.Send(t, p)
	}

	buf := make([]byte, 2048)
	n, _, err := h.conn[0].ReadFromUDPAddrPort(buf) // The initiation waits in the network.
	errtest.Must(t, err)
	nettest.Until(t, 5*time.Second, "packets that wait", func() bool {
		return a.Engine.StagedBytes() == int64(len(want)*len(want[0]))
	})
	handOver(t, a)
	h.run()
	h.pass(0, bytes.Clone(buf[:n]))
	for _, p := range want {
		expect(t, b, p)
	}
	d := a.Engine.Drops()
	delete(d, "unknown_index") // b may still answer the peer that was removed
	if len(d) > 0 {
		t.Errorf("dropped %v", d)
	}
}

// After a handover, only the successor has keys in memory. When it is closed, it has none either.
func TestKeysLeaveTheMemoryOfTheOldDevice(t *testing.T) {
	a, b, _ := greeted(t)
	settle(t, a, b)
	// The private key is not checked: it is in the text of the configuration, which is on Go's heap
	// (design note 0019).
	sessions := a.Engine.SessionKeys()
	keys := append(sessions, memtest.Covered(a.Private[:]))
	clear(a.Private[:])
	b.Close()

	count := func(when string, want int) {
		t.Helper()
		runtime.GC()
		for i := range keys {
			where := memtest.Everywhere
			if i == len(sessions) {
				where = memtest.OutsideHeap
			}
			if got := memtest.Count(t, keys[i], where); got != want {
				t.Errorf("%s: key %d is %d times in memory, want %d", when, i, got, want)
			}
		}
	}

	h := export(t, a)
	next := successor(t, a, h)
	count("before the commit", 3) // The device, the image, the successor.
	h.Commit()
	count("after the commit", 1)
	a.Abandon(next)
	count("after the end", 0)
}

// On a hostile network, devices are handed over repeatedly, and processes die at each step of a
// handover. No counter is used twice, no packet is delivered twice, and traffic continues.
func TestHandoverAndDeathAtEveryStep(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			h := newHostile(t, seed)
			a, b := enginetest.NewEngine(t), enginetest.NewEngine(t)
			nodes := []*enginetest.TunDevice{a, b}
			enginetest.Pair(t, a, b, false, "")
			for i, n := range nodes {
				h.device[i] = netip.MustParseAddrPort("127.0.0.1:" + listening(t, n))
			}
			h.run()
			var kept [2]string
			for i, n := range nodes {
				n.Set(t, "public_key=%x\nendpoint=127.0.0.1:%d\n", nodes[1-i].Public, h.port(i))
				kept[i] = fmt.Sprintf("private_key=%x\nlisten_port=%d\npublic_key=%x\n"+
					"endpoint=127.0.0.1:%d\nallowed_ip=10.0.0.%d/32\n", n.Private,
					h.device[i].Port(), nodes[1-i].Public, h.port(i), 2-i)
			}
			connect(t, a, b)

			came := [2]map[uint64]int{{}, {}}
			take := func(i int, p []byte) {
				number := binary.BigEndian.Uint64(p[28:])
				if came[i][number]++; came[i][number] > 1 {
					t.Fatalf("packet %d came twice", number)
				}
			}

			h.exchange(t, nodes, func(number uint64) {
				if number%40 != 20 {
					return
				}
				i := r.IntN(2)
				step := r.IntN(8)
				if replace(t, nodes[i], step) {
					nodes[i].Set(t, "%s", kept[i])
				}
			}, take)
			// A side whose packets are not answered requests a session after 15 s (WireGuard's
			// KEEPALIVE_TIMEOUT and REKEY_TIMEOUT).
			passes(t, nodes, 20*time.Second, take)

			h.mu.Lock()
			defer h.mu.Unlock()
			if h.reused > 0 {
				t.Errorf("%d counters were used for two messages", h.reused)
			}
			if len(came[0]) < exchanged/8 || len(came[1]) < exchanged/8 {
				t.Errorf("%d and %d packets came of %d: %v", len(came[0]), len(came[1]), exchanged,
					drops(nodes))
			}
		})
	}
}

// replace hands a node's device over, up to a step at which one of the processes dies. It reports
// whether the node has a new device without its state.
func replace(t *testing.T, n *enginetest.TunDevice, step int) (fresh bool) {
	t.Helper()
	h := export(t, n)
	if step == 0 { // The successor dies before it has read the state.
		h.Resume(errors.New("it died"))
		return false
	}
	next := successor(t, n, h)

	switch step {
	case 1: // The successor dies before the commit.
		n.Abandon(next)
		h.Resume(errors.New("it died"))
		return false
	case 2: // The old process dies before the commit, so the successor does not start.
		n.Abandon(next)
		h.Commit()
	case 3: // The successor dies after the commit.
		h.Commit()
		n.Abandon(next)
	default:
		h.Commit()
		next.Start()
		n.Use(next)
		return false
	}
	n.Restart(t)
	return true
}
