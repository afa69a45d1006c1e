package engine_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// Ten thousand peers that do not answer get a bounded number of initiations a second, and a live
// peer among them has a session within a second.
func TestUnreachablePeersHaveABudget(t *testing.T) {
	const peers = 10000
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	_ = sink.SetReadBuffer(4 << 20)
	var came atomic.Int64
	go func() {
		b := make([]byte, 2048)
		for {
			if _, _, err := sink.ReadFromUDPAddrPort(b); err != nil {
				return
			}
			came.Add(1)
		}
	}()
	a, live := newEngine(t), newEngine(t)
	a.Set(t, "private_key=%x\nlisten_port=0\n", a.Private[:])
	listening(t, a)
	var set strings.Builder
	for i := range peers {
		fmt.Fprintf(&set, "public_key=%064x\nendpoint=%s\nallowed_ip=10.%d.%d.0/24\n", i+1000,
			sink.LocalAddr(), 1+i/250, i%250)
	}
	before := cpuTime()
	if err := a.IpcSetOperation(strings.NewReader(set.String())); err != nil {
		t.Fatal(err)
	}
	t.Logf("configuration of %d peers: %s of CPU", peers, cpuTime()-before)

	// Traffic to all of them, so that each wants a session for ever.
	end := make(chan struct{})
	defer close(end)
	go func() {
		for i := 0; ; i = (i + 1) % peers {
			p := datagram(false, true, []byte("hello"))
			p[17], p[18] = byte(1+i/250), byte(i%250)
			_ = a.TrySend(p)
			if i%20 == 0 {
				select {
				case <-end:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}
	}()
	// First initiations go at 1,500 a second, the rest at 100.
	nettest.Until(t, 120*time.Second, "the end of first initiations", func() bool {
		was := came.Load()
		time.Sleep(time.Second)
		return came.Load() > peers && came.Load()-was < 300
	})

	began, was, cpu := time.Now(), came.Load(), cpuTime()
	time.Sleep(4 * time.Second)
	rate := float64(came.Load()-was) / time.Since(began).Seconds()
	t.Logf("%.0f initiations a second, %.1f %% of a core", rate,
		100*(cpuTime()-cpu).Seconds()/time.Since(began).Seconds())
	if rate > 130 {
		t.Errorf("%.0f initiations a second to peers that do not answer, want at most 100", rate)
	}

	enginetest.Pair(t, a, live, false, "")
	p := datagram(false, true, []byte("hello"))
	began = time.Now()
	a.Send(t, p)
	if got := live.Receive(10 * time.Second); !bytes.Equal(got, p) {
		t.Fatalf("no packet came to the live peer: %v", a.Engine.Drops())
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the live peer got its first packet after %s, want a second", took)
	}
}

// cpuTime returns the time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
