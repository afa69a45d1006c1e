package engine_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// aged returns an engine and a device of another implementation with a session, and the engine's
// clock.
func aged(t *testing.T, other maker) (c *clock, a, b *enginetest.TunDevice) {
	t.Helper()
	c = new(clock)
	a, b = enginetest.NewEngine(t, withClock(c)), other(t)
	enginetest.Pair(t, a, b, false, "")
	connect(t, a, b)
	settle(t, a)
	return c, a, b
}

// The engine renews its session with another implementation after 120 s, and no packet is lost.
func TestOthersAnswerARenewal(t *testing.T) {
	there := datagram(false, true, []byte("hello"))
	back := datagram(false, false, []byte("back"))
	for _, o := range others {
		t.Run(o.name, func(t *testing.T) {
			c, a, b := aged(t, o.b)
			before := a.Engine.Sessions()
			c.pass(121 * time.Second)
			nettest.Until(t, 10*time.Second, "another session", func() bool {
				a.Send(t, there)
				expect(t, b, there)
				b.Send(t, back)
				expect(t, a, back)
				return a.Engine.Sessions() != before
			})
		})
	}
}

// A session that is too old for the engine is not used, and another one takes its place, although
// it is young to the other implementation.
func TestSessionThatIsOldToOneSideIsReplaced(t *testing.T) {
	there := datagram(false, true, []byte("hello"))
	back := datagram(false, false, []byte("back"))
	for _, o := range others {
		t.Run(o.name, func(t *testing.T) {
			c, a, b := aged(t, o.b)
			before := a.Engine.Sessions()
			c.pass(181 * time.Second)
			nettest.Until(t, 25*time.Second, "a packet", func() bool {
				b.Send(t, back)
				return a.Receive(200*time.Millisecond) != nil
			})
			if a.Engine.Sessions() == before {
				t.Error("it came under a session of 181 s")
			}
			a.Send(t, there)
			expect(t, b, there)
		})
	}
}

// An engine that starts again, as after a reboot, reaches a peer that has sessions with the former
// one, and is reached by it, before the peer would notice the silence after 15 s.
func TestOthersTakeAnEngineThatStartsAgain(t *testing.T) {
	for _, c := range others {
		for _, out := range []bool{true, false} {
			name := c.name + map[bool]string{true: "/sends", false: "/receives"}[out]
			t.Run(name, func(t *testing.T) {
				a, b := newEngine(t), c.b(t)
				enginetest.Pair(t, a, b, false, "")
				connect(t, a, b)
				settle(t, a)

				port := listening(t, a)
				a.Engine.Close()
				a.Restart(t)
				from, to := a, b
				if !out {
					from, to = b, a
				}
				began := time.Now()
				a.Set(t, "private_key=%x\nlisten_port=%s\npublic_key=%x\nendpoint=127.0.0.1:%s\n"+
					"allowed_ip=10.0.0.2/32\n", a.Private, port, b.Public, listening(t, b))
				p := datagram(false, out, []byte("hello"))
				nettest.Until(t, 10*time.Second, "a packet", func() bool {
					from.Send(t, p)
					return to.Receive(100*time.Millisecond) != nil
				})
				t.Logf("after %s", time.Since(began))
			})
		}
	}
}

// A device of another implementation that starts again with the same key and port reaches the
// engine, which has a session with the former one, and is reached by it while it sends.
func TestEngineTakesOthersThatStartAgain(t *testing.T) {
	for _, c := range others {
		t.Run(c.name, func(t *testing.T) {
			a, b := newEngine(t), c.b(t)
			enginetest.Pair(t, a, b, false, "")
			connect(t, a, b)
			settle(t, a)

			port := listening(t, b)
			b.Close()
			again := c.b(t)
			again.Set(t, "private_key=%x\nlisten_port=%s\npublic_key=%x\nendpoint=127.0.0.1:%s\n"+
				"allowed_ip=10.0.0.1/32\n", b.Private, port, a.Public, listening(t, a))
			back := datagram(false, false, []byte("back"))
			again.Send(t, back)
			expect(t, a, back)
			// What the engine sends before it uses the new session is lost.
			there := datagram(false, true, []byte("hello"))
			nettest.Until(t, 10*time.Second, "a packet", func() bool {
				again.Send(t, back)
				a.Send(t, there)
				return again.Receive(100*time.Millisecond) != nil
			})
		})
	}
}

// A peer that dies right after a handshake, and starts again, is reached before its silence would
// be noticed after 15 s. If it had not sent anything yet, its new handshake looks like one that
// crossed the last one.
func TestPeerThatDiesAfterAHandshakeIsReached(t *testing.T) {
	for name, sent := range map[string]bool{"after it sent": true, "before it sent": false} {
		t.Run(name, func(t *testing.T) {
			a, b := newEngine(t), newEngine(t)
			if bytes.Compare(a.Public[:], b.Public[:]) < 0 {
				a, b = b, a // The side with the greater key keeps its own session.
			}
			enginetest.Pair(t, a, b, false, "")
			connect(t, a, b)
			settle(t, a, b)
			p := datagram(false, true, []byte("hello"))
			a.Set(t, "public_key=%x\nremove=true\n", b.Public)
			a.Set(t, "public_key=%x\nendpoint=127.0.0.1:%s\nallowed_ip=10.0.0.2/32\n", b.Public,
				listening(t, b))
			a.Send(t, p)
			expect(t, b, p)
			if sent {
				connect(t, a, b)
			}

			port := listening(t, b)
			b.Engine.Close()
			b.Restart(t)
			b.Set(t, "private_key=%x\nlisten_port=%s\npublic_key=%x\nendpoint=127.0.0.1:%s\n"+
				"allowed_ip=10.0.0.1/32\n", b.Private, port, a.Public, listening(t, a))
			nettest.Until(t, 10*time.Second, "a packet", func() bool {
				a.Send(t, p)
				return b.Receive(50*time.Millisecond) != nil
			})
		})
	}
}
