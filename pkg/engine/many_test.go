package engine_test

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// steps is a clock that only the test advances, by one walk over the peers at a time. So rates
// follow the clock of the device, also on a slow machine.
type steps struct{ at atomic.Int64 }

func (s *steps) now() time.Duration { return time.Duration(s.at.Load()) }

// pass advances the clock by d, one walk after another.
func (s *steps) pass(t *testing.T, n *enginetest.TunDevice, d time.Duration) {
	t.Helper()
	for end := s.now() + d; s.now() < end; {
		s.at.Add(int64(engine.WalkInterval))
		nettest.Until(t, 30*time.Second, "a walk over the peers", func() bool {
			return n.Engine.LastWalk() >= s.now()
		})
	}
}

// initiations returns the number of initiations that the node sent to each peer, in the order of
// the configuration, and their sum. It derives them from the sent bytes, because a peer that does
// not answer gets no other messages.
func initiations(t *testing.T, n *enginetest.TunDevice) (each []int, sum int) {
	t.Helper()
	for _, text := range n.Get(t, "tx_bytes") {
		sent, err := strconv.Atoi(text)
		if err != nil || sent%noise.InitiationSize != 0 {
			t.Fatalf("tx_bytes=%s is not a number of initiations", text)
		}
		each = append(each, sent/noise.InitiationSize)
		sum += sent / noise.InitiationSize
	}
	return each, sum
}

// Two thousand peers that do not answer get a bounded number of initiations a second, in turn, and
// a live peer among them gets its own within a second.
func TestUnreachablePeersHaveABudget(t *testing.T) {
	const (
		peers = 2000
		burst = 51 // of repeated initiations
	)
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	errtest.Must(t, err)
	defer sink.Close() // No process reads: what does not fit is lost, as at a peer that is away.

	var c steps
	c.at.Store(int64(time.Hour))
	a := enginetest.NewEngine(t, func(o *engine.DeviceConfig) { o.Clock = c.now })
	live := newEngine(t)
	a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
	listening(t, a)
	var set strings.Builder
	for i := range peers {
		fmt.Fprintf(&set, "public_key=%064x\nendpoint=%s\nallowed_ip=10.%d.%d.0/24\n", i+1000,
			sink.LocalAddr(), 1+i/250, i%250)
	}
	before := cpuTime()
	errtest.Must(t, a.IpcSetOperation(strings.NewReader(set.String())))
	t.Logf("configuration of %d peers: %s of CPU", peers, cpuTime()-before)

	// Traffic to all peers, so that each needs a session all the time.
	end := make(chan struct{})
	defer close(end)
	go sendToAll(a, peers, end)

	// Each has one first initiation, by traffic or as a greeting, at 1,500 per second.
	c.pass(t, a, peers/1500*time.Second+2*time.Second)
	each, was := initiations(t, a)
	for i, n := range each {
		if n == 0 {
			t.Fatalf("peer %d got no initiation", i)
		}
	}

	const took = 10 * time.Second
	cpu := cpuTime()
	c.pass(t, a, took)
	after, sent := initiations(t, a)
	sent -= was
	t.Logf("%d initiations in %s, %.1f %% of a core", sent, took,
		100*(cpuTime()-cpu).Seconds()/took.Seconds())
	if most := 100*int(took.Seconds()) + burst; sent > most || sent < 900 {
		t.Errorf("%d initiations in %s to peers that do not answer, want 900 to %d", sent, took,
			most)
	}
	for i, n := range after {
		if n > each[i]+1 {
			t.Fatalf("peer %d got %d initiations while others had none", i, n-each[i])
		}
	}

	// The live peer has no endpoint of the node, so it waits for its initiation.
	live.Set(t, "private_key=%x\nlisten_port=0\n", live.Private[:])
	at := listening(t, live)
	live.Set(t, "public_key=%x\nallowed_ip=10.0.0.1/32\n", a.Public[:])
	a.Set(t, "public_key=%x\nendpoint=127.0.0.1:%s\nallowed_ip=10.0.0.2/32\n", live.Public[:], at)
	p := datagram(false, true, []byte("hello"))
	send := func() bool { return a.TrySend(p) == nil } // the traffic may fill the TUN's queue
	nettest.Until(t, 30*time.Second, "room in the TUN's queue", send)
	c.pass(t, a, time.Second)
	if all := a.Get(t, "tx_bytes"); len(all) != peers+1 || all[peers] == "0" {
		t.Fatalf("the live peer got no initiation within a second: %v", a.Engine.Drops())
	}

	defer func() {
		if t.Failed() {
			tx, rx := a.Get(t, "tx_bytes"), a.Get(t, "rx_bytes")
			t.Logf("to the live peer %s bytes, from it %s; it got %s and sent %s; drops %v and %v",
				tx[peers], rx[peers], live.Get(t, "rx_bytes"), live.Get(t, "tx_bytes"),
				a.Engine.Drops(), live.Engine.Drops())
		}
	}()

	// The bytes that wait for sessions are bounded over all peers, so the first packet may be
	// dropped.
	var got []byte
	nettest.Until(t, 30*time.Second, "a packet at the live peer", func() bool {
		c.pass(t, a, engine.WalkInterval)
		got = live.Receive(engine.WalkInterval)
		return got != nil || !send()
	})
	if !bytes.Equal(got, p) {
		t.Errorf("another packet came to the live peer: %x", got)
	}
}

// sendToAll sends to peers, one after the other, until end is closed.
func sendToAll(n *enginetest.TunDevice, peers int, end <-chan struct{}) {
	for i := 0; ; i = (i + 1) % peers {
		p := datagram(false, true, []byte("hello"))
		p[17], p[18] = byte(1+i/250), byte(i%250)
		_ = n.TrySend(p)
		if i%20 == 0 {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
