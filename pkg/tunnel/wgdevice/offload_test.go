package wgdevice_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// Bursts inside the tunnel find a path that silently loses segmented datagrams. Datagrams to that
// peer are then sent one by one, and a transfer that stood still goes on. The successor of the
// process keeps that setting.
func TestPathThatLosesSegmentsIsFound(t *testing.T) {
	t.Setenv(engineEnv, worker.EngineKubeveil) // wireguard-go has no such request.
	nft := nettest.NeedProgram(t, "nft")
	a, b := pair(t, ipv4)
	for _, text := range []string{"add table inet lossy", "add chain inet lossy c " +
		"{ type filter hook output priority 0; }",
		"add rule inet lossy c udp dport 51820 meta length > 1600 counter drop"} {
		a.Exec(t, nft, text)
	}

	name := "node-" + b.under.Addr().String()
	done := transfer(t, a, b, 8<<20)
	select {
	case err := <-done:
		t.Fatalf("the transfer went through before the path was found: %v", err)
	case <-time.After(time.Second):
	}

	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(wg.Wait)
	t.Cleanup(stop)
	for _, n := range []*testNode{a, b} {
		other := a
		if n == a {
			other = b
		}
		p := pathmtu.New(pathmtu.ProberConfig{
			Sources: []netip.Addr{n.inner.Addr()}, Timeout: 200 * time.Millisecond,
			Log: slog.New(slog.NewTextHandler(n.log, nil)),
			Timing: pathmtu.Timing{Interval: 300 * time.Millisecond, RaiseInterval: time.Minute,
				RetryMin: 50 * time.Millisecond, Tries: 3},
			Broken: func(p pathmtu.Peer) {
				err := n.Do(func() error { return n.m.SendSingly(ctx, p.Device, p.Name) })
				if err != nil {
					t.Errorf("send singly: %v", err)
				}
			},
		})
		p.SetPeers([]pathmtu.Peer{{Name: "node-" + other.under.Addr().String(), Device: device,
			Addr: other.inner.Addr(), DeviceMTU: 1440}})
		wg.Go(func() { n.NS.Do(func() error { return p.Run(ctx) }) })
	}

	nettest.Until(t, 20*time.Second, "a peer to which datagrams are sent singly",
		func() bool { return a.singly(t, name) })
	if b.singly(t, "node-"+a.under.Addr().String()) {
		t.Error("the other direction carries everything, and is sent singly")
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the transfer stands still although datagrams are sent singly")
	}

	// A newer veil-wg takes the device over, with this setting.
	before := a.child()
	a.startWorker("--instance", "newer")
	nettest.Until(t, 10*time.Second, "the successor", func() bool {
		pid := a.child()
		return pid != 0 && pid != before
	})
	if !a.singly(t, name) {
		t.Error("the successor sends segmented datagrams again")
	}

	// A process that starts again has lost the setting, and gets it again.
	a.killChild(syscall.SIGKILL)
	nettest.Until(t, 20*time.Second, "the process that started again to be told",
		func() bool { return a.singly(t, name) })
}

// singly reports whether the device sends datagrams to a node one by one.
func (n *testNode) singly(t *testing.T, name string) (singly bool) {
	t.Helper()
	_ = n.Do(func() error {
		st, err := n.m.Status(t.Context())
		if err != nil || len(st.Devices) != 1 || !st.Devices[0].Served {
			return err
		}
		if on := st.Devices[0].Offloads; !on["udp_segment"] || !on["tun_tcp"] {
			t.Errorf("offloads %v, want all", on)
		}
		for _, p := range st.Devices[0].Peers {
			singly = singly || p.Name == name && p.Singly
		}
		return nil
	})
	return singly
}

// transfer sends bytes from one node to the other over TCP and reports when all have arrived.
func transfer(t *testing.T, from, to *testNode, size int) <-chan error {
	t.Helper()
	var l net.Listener
	to.Run(t, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(to.inner.Addr().String(), "0"))
		return err
	})
	t.Cleanup(func() { l.Close() })
	var c net.Conn
	from.Run(t, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		return err
	})
	t.Cleanup(func() { c.Close() })
	done := make(chan error, 1)
	go func() { _, _ = c.Write(bytes.Repeat([]byte{'x'}, size)) }()
	go func() {
		s, err := l.Accept()
		if err == nil {
			defer s.Close()
			_, err = io.CopyN(io.Discard, s, int64(size))
		}
		done <- err
	}()
	return done
}
