package engine_test

import (
	"bytes"
	"crypto/rand"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/memtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// clock is a time since boot that a test moves.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano() + c.ahead.Load())
}

func (c *clock) pass(d time.Duration) { c.ahead.Add(int64(d)) }

func withClock(c *clock) func(*engine.DeviceConfig) {
	return func(o *engine.DeviceConfig) { o.Clock = c.now }
}

// listening waits until the device has a UDP socket, and returns the port of the socket.
func listening(t *testing.T, n *enginetest.TunDevice) string {
	t.Helper()
	nettest.Until(t, 5*time.Second, "a socket", func() bool {
		return len(n.Get(t, "listen_port")) == 1
	})
	return n.Get(t, "listen_port")[0]
}

// settle waits until no handshake is under way, so that the test does not move the clock of one
// side during a handshake.
func settle(t *testing.T, nodes ...*enginetest.TunDevice) {
	t.Helper()
	for _, n := range nodes {
		since, last := time.Now(), n.Engine.Sessions()
		nettest.Until(t, 10*time.Second, "the end of handshakes", func() bool {
			if now := n.Engine.Sessions(); now != last {
				since, last = time.Now(), now
			}
			return time.Since(since) > 300*time.Millisecond
		})
	}
}

// A session is renewed when its initiator sends after 120 s, and no packet is lost.
func TestSessionIsRenewed(t *testing.T) {
	var c clock
	a, b, p := greeted(t, withClock(&c))
	back := datagram(false, false, []byte("back"))
	settle(t, a, b)
	for range 4 {
		c.pass(121 * time.Second)
		before := a.Engine.Sessions()
		for range 20 {
			a.Send(t, p)
			expect(t, b, p)
			b.Send(t, back)
			expect(t, a, back)
		}
		nettest.Until(t, 10*time.Second, "another session", func() bool {
			a.Send(t, p)
			expect(t, b, p)
			return a.Engine.Sessions() != before
		})
		settle(t, a, b)
	}
}

// After 180 s, a session neither sends nor receives packets. Packets wait for the next session.
func TestSessionOf180SecondsIsNotUsed(t *testing.T) {
	var c clock
	a, b, p := greeted(t, withClock(&c))
	settle(t, a, b)
	before := a.Engine.Sessions()
	c.pass(181 * time.Second)
	a.Send(t, p)
	expect(t, b, p)
	if a.Engine.Sessions() == before {
		t.Error("the packet came under the old session")
	}
}

// After 540 s without a new session, the memory of the process has no key of the old session. The
// same is true after a peer is removed.
func TestKeysLeaveMemory(t *testing.T) {
	for _, way := range []string{"540 s", "removed"} {
		t.Run(way, func(t *testing.T) {
			var c clock
			a, b := enginetest.NewEngine(t, withClock(&c)), enginetest.NewEngine(t, withClock(&c))
			enginetest.Pair(t, a, b, false, "")

			p := datagram(false, true, make([]byte, 1200))
			for range 50 {
				a.Send(t, p)
				expect(t, b, p)
			}

			keys := a.Engine.SessionKeys()
			if len(keys) == 0 {
				t.Fatal("no session")
			}

			// This checks the search.
			if n := memtest.Count(t, keys[0], memtest.Everywhere); n == 0 {
				t.Fatal("a key in memory was not found")
			}

			if way == "removed" {
				a.Set(t, "public_key=%x\nremove=true\n", b.Public[:])
				b.Set(t, "public_key=%x\nremove=true\n", a.Public[:])
			} else {
				a.Set(t, "public_key=%x\nendpoint=127.0.0.1:9\nallowed_ip=-10.0.0.2/32\n",
					b.Public[:])
				b.Set(t, "public_key=%x\nendpoint=127.0.0.1:9\nallowed_ip=-10.0.0.1/32\n",
					a.Public[:])
				c.pass(541 * time.Second)
			}

			nettest.Until(t, 5*time.Second, "the end of the sessions", func() bool {
				return a.Engine.Sessions() == 0 && b.Engine.Sessions() == 0
			})
			runtime.GC()

			for i := range keys {
				if n := memtest.Count(t, keys[i], memtest.Everywhere); n > 0 {
					t.Errorf("key %d is %d times in memory", i, n)
				}
			}
		})
	}
}

// The garbage collector leaves no copy of a key behind, even if it runs during computations on the
// key. Without secret.Environ, it leaves a copy within seconds.
func TestCollectorLeavesNoKeyBehind(t *testing.T) {
	var arena secret.Arena
	worker, err := aead.NewWorker(&arena)
	errtest.Must(t, err)
	defer worker.Close(&arena)
	key, err := secret.Alloc[aead.Key](&arena)
	errtest.Must(t, err)
	defer secret.Free(&arena, key)
	_, _ = rand.Read(key[:])

	end := time.Now().Add(3 * time.Second)
	var sealing sync.WaitGroup
	sealing.Go(func() {
		secret.LockThread()
		packets := make([]aead.Packet, 8)
		for i := range packets {
			packets[i].Data = make([]byte, 1400)
		}
		for time.Now().Before(end) {
			aead.XCrypto.Seal(worker, key, packets)
		}
	})
	for time.Now().Before(end) {
		runtime.GC()
	}
	sealing.Wait()

	covered := memtest.Covered(key[:])
	clear(key[:])
	runtime.GC()
	if n := memtest.Count(t, covered, memtest.Everywhere); n > 0 {
		t.Errorf("the key is %d times in memory", n)
	}
}

// A peer that sends keepalives gets none in reply, and an idle pair is silent.
func TestKeepaliveIsNotAnswered(t *testing.T) {
	var c clock
	a, b, _ := greeted(t, withClock(&c))
	time.Sleep(1500 * time.Millisecond) // Confirmations of the greeting end.
	c.pass(11 * time.Second)            // The answer that data is owed.
	time.Sleep(400 * time.Millisecond)
	before := b.Get(t, "tx_bytes")[0]
	for range 4 {
		a.Set(t, "public_key=%x\npersistent_keepalive_interval=5\n", b.Public[:])
		c.pass(6 * time.Second)
		time.Sleep(250 * time.Millisecond)
	}
	if after := b.Get(t, "tx_bytes")[0]; after != before {
		t.Errorf("%s bytes sent, before %s", after, before)
	}
}

// A peer that receives data and sends none answers with an empty packet after 10 s. So the sender
// does not begin a handshake after 15 s.
func TestOneWayDataIsAnswered(t *testing.T) {
	var c clock
	a, _, _ := greeted(t, withClock(&c))
	time.Sleep(1500 * time.Millisecond)
	c.pass(10 * time.Second)
	time.Sleep(300 * time.Millisecond)
	before := a.Engine.Sessions()
	c.pass(8 * time.Second)
	time.Sleep(300 * time.Millisecond)
	if a.Engine.Sessions() != before {
		t.Error("a handshake was begun though the peer answers")
	}
}

// During a flood of initiations, a peer still gets a session, because it first gets a cookie.
func TestPeerGetsThroughAFlood(t *testing.T) {
	for _, c := range fromEngine {
		t.Run(c.name, func(t *testing.T) {
			b, a := newEngine(t), c.b(t)
			b.Set(t, "private_key=%x\nlisten_port=0\n", b.Private[:])
			flood, err := net.Dial("udp", "127.0.0.1:"+listening(t, b))
			errtest.Must(t, err)
			defer flood.Close()
			msg := enginetest.Initiation(t, b.Public)

			end := make(chan struct{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					select {
					case <-end:
						return
					default:
						for range 20 {
							_, _ = flood.Write(msg)
						}
						time.Sleep(time.Millisecond)
					}
				}
			}()

			nettest.Until(t, 10*time.Second, "a demand for cookies", func() bool {
				return b.Engine.Drops()["cookie_demanded"] > 0
			})
			enginetest.Pair(t, a, b, false, "")
			p := datagram(false, true, []byte("hello"))
			a.Send(t, p)
			got := b.Receive(20 * time.Second)
			close(end)
			<-done
			if !bytes.Equal(got, p) {
				t.Errorf("no packet came: %v", b.Engine.Drops())
			}
		})
	}
}
