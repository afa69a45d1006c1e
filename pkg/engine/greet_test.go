package engine_test

import (
	"crypto/rand"
	"testing"
	"time"

	"golang.org/x/crypto/curve25519"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// hasSession waits until a device has a session, although neither side sends a packet.
func hasSession(t *testing.T, n *enginetest.TunDevice) {
	t.Helper()
	nettest.Until(t, 20*time.Second, "a session that no packet asked for", func() bool {
		return n.Engine.Sessions() != 0
	})
}

// passesOnce sends p from a until it arrives at b. Earlier copies may be lost, because a uses its
// former session until it has received a packet from b.
func passesOnce(t *testing.T, a, b *enginetest.TunDevice, p []byte) {
	t.Helper()
	nettest.Until(t, 10*time.Second, "a packet", func() bool {
		a.Send(t, p)
		return b.Receive(100*time.Millisecond) != nil
	})
}

// A device whose link was down begins handshakes with all peers, also with peers that had sessions.
// The device has dropped these sessions, and a peer that only sends would not notice that.
func TestLinkUpGreetsKnownPeers(t *testing.T) {
	a, b, p := greeted(t)
	settle(t, a, b)
	b.Up.Store(false)
	nettest.Until(t, 10*time.Second, "the end of the sessions", func() bool {
		return b.Engine.Sessions() == 0
	})
	b.Up.Store(true)
	hasSession(t, b)
	passesOnce(t, a, b, p)
}

// A device with a new private key begins handshakes with all peers, also with peers that had
// sessions.
func TestNewPrivateKeyGreetsKnownPeers(t *testing.T) {
	var c clock
	a, b, _ := greeted(t, withClock(&c))
	settle(t, a, b)
	for range 4 { // Confirmations of the first greeting end.
		c.pass(2 * time.Second)
		until := c.now()
		nettest.Until(t, 10*time.Second, "a walk over the peers", func() bool {
			return b.Engine.LastWalk() >= until
		})
	}
	var private [32]byte
	rand.Read(private[:])
	public, err := curve25519.X25519(private[:], curve25519.Basepoint)
	errtest.Must(t, err)
	// a has no endpoint for b, so only b can begin a handshake.
	a.Set(t, "replace_peers=true\npublic_key=%x\nallowed_ip=10.0.0.2/32\n", public)
	b.Set(t, "private_key=%x\n", private[:])
	hasSession(t, b)
	passesOnce(t, a, b, datagram(false, true, []byte("under the new key")))
}
