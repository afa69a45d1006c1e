package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// outer holds the addresses of node a, which has two links to a router, of the router, and of node
// b behind it.
type outer struct {
	name, anywhere string
	a0, a1         string // node a
	r0, r1, r9     string // the router
	b              string
	bits, all      int
	forward, nodad string
}

var outers = []outer{
	{"ipv4", "0.0.0.0/0", "198.18.0.1", "198.18.1.1", "198.18.0.254", "198.18.1.254", "198.18.9.254",
		"198.18.9.2", 24, 32, "ipv4/ip_forward", ""},
	{"ipv6", "::/0", "fd42:0:0:1::1", "fd42:0:0:2::1", "fd42:0:0:1::fe", "fd42:0:0:2::fe",
		"fd42:0:0:9::fe", "fd42:0:0:9::2", 64, 128, "ipv6/conf/all/forwarding", "nodad"},
}

const (
	innerA = "198.19.0.1"
	innerB = "198.19.0.2"
	router = podA // the index of the router in a world's spaces
)

// apart builds node a with two links to a router, node b behind the router, and tunnels between the
// nodes.
func apart(t *testing.T, engine string, o outer) *world {
	t.Helper()
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	w := &world{side: side{name: "test", engine: engine}, engines: [2]string{engine, engine},
		mtu: 1500, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			for k := range 2 {
				b, _ := os.ReadFile(filepath.Join(w.dir, fmt.Sprint(k), "log"))
				t.Logf("log of node %d:\n%s", k, b)
			}
		}
		w.close()
		os.RemoveAll(dir)
	})

	ip := func(i int, format string, args ...any) {
		t.Helper()
		errtest.Must(t, w.spaces[i].IP(t.Context(), fmt.Sprintf(format, args...)))
	}
	for i := range 3 {
		errtest.Must(t, w.add(i))
		// A link without a link-local address sends no neighbour solicitation.
		errtest.Must(t, w.spaces[i].Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	at := w.spaces[router].Path()
	ip(nodeA, "link add eth0 type veth peer name a0 netns %s", at)
	ip(nodeA, "link add eth1 type veth peer name a1 netns %s", at)
	ip(nodeB, "link add eth0 type veth peer name b0 netns %s", at)
	for _, l := range []struct {
		node       int
		link, addr string
	}{{nodeA, "eth0", o.a0}, {nodeA, "eth1", o.a1}, {nodeB, "eth0", o.b}, {router, "a0", o.r0},
		{router, "a1", o.r1}, {router, "b0", o.r9}} {
		ip(l.node, "addr add %s/%d dev %s %s", l.addr, o.bits, l.link, o.nodad)
		ip(l.node, "link set %s up", l.link)
	}
	errtest.Must(t, w.spaces[router].Sysctl("net/"+o.forward, "1"))
	ip(nodeA, "route add default via %s", o.r0)
	ip(nodeB, "route add default via %s", o.r9)

	keys := make([]wgkey.Private, 2)
	for i := range keys {
		keys[i], err = wgkey.Generate()
		errtest.Must(t, err)
		errtest.Must(t, w.start(i, 1400))
	}
	for i, to := range []string{o.b, o.a0} {
		own, other := keys[i].Bytes(), keys[1-i].Public()
		errtest.Must(t, configure(t.Context(), w.socket(i), fmt.Sprintf(
			"private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\nallowed_ip=198.19.0.%d/32\n",
			hex.EncodeToString(own[:]), port, hex.EncodeToString(other[:]),
			net.JoinHostPort(to, fmt.Sprint(port)), 2-i)))
		ip(i, "addr add 198.19.0.%d/24 dev veil0", i+1)
	}
	return w
}

// echoes sends a datagram every 10 ms from node a to node b, which sends it back, until the test
// ends.
type echoes struct {
	came atomic.Int64
	last atomic.Int64 // time of the last echo, ns since began
	gap  atomic.Int64 // longest time without an echo, ns
	from time.Time
}

func (w *world) echoes(t *testing.T) *echoes {
	t.Helper()
	e := &echoes{from: time.Now()}
	var server, client *net.UDPConn
	errtest.Must(t, w.spaces[nodeB].Do(func() (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(innerB)})
		return err
	}))
	errtest.Must(t, w.spaces[nodeA].Do(func() (err error) {
		client, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(innerA)},
			server.LocalAddr().(*net.UDPAddr))
		return err
	}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{}, 3)
	t.Cleanup(func() {
		stop()
		server.Close()
		client.Close()
		for range 3 {
			<-ended
		}
	})

	go func() {
		defer func() { ended <- struct{}{} }()
		b := make([]byte, 64)
		for {
			n, from, err := server.ReadFromUDP(b)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDP(b[:n], from)
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		for poll.Pause(ctx, 10*time.Millisecond) == nil {
			_, _ = client.Write([]byte("echo"))
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		b := make([]byte, 64)
		for ctx.Err() == nil {
			if _, err := client.Read(b); err != nil {
				continue // an ICMP error, or the end of the test
			}
			now := int64(time.Since(e.from))
			e.gap.Store(max(e.gap.Load(), now-e.last.Swap(now)))
			e.came.Add(1)
		}
	}()
	return e
}

// flow waits until a number of further echoes have arrived.
func (e *echoes) flow(t *testing.T, n int64, patience time.Duration) {
	t.Helper()
	from := e.came.Load()
	nettest.Until(t, patience, fmt.Sprintf("%d echoes", n), func() bool {
		return e.came.Load() >= from+n
	})
}

// Tunnels follow the nodes' routes: with asymmetric routes, and when a route moves to another link,
// with or without the carrier or the address of the first link. The test waits less than the 15 s
// after which an engine reacts to silence. In the long run, the longest gap is at most 0.5 s, or that
// of wireguard-go and 0.2 s.
func TestNodesFollowTheirRoutes(t *testing.T) {
	const patience = 12 * time.Second

	for _, tc := range []struct {
		name   string
		change [2]func(o outer) string // of node a and of the router
	}{
		{"asymmetric", [2]func(outer) string{nil, func(o outer) string {
			return fmt.Sprintf("route add %s/%d via %s", o.a0, o.all, o.a1)
		}}},
		{"route moves", [2]func(outer) string{func(o outer) string {
			return fmt.Sprintf("route replace default via %s", o.r1)
		}, nil}},
		{"carrier lost", [2]func(outer) string{func(o outer) string {
			return fmt.Sprintf("route replace default via %s", o.r1)
		}, func(outer) string { return "link set a0 down" }}},
		{"address moves", [2]func(outer) string{func(o outer) string {
			return fmt.Sprintf("addr del %[1]s/%[2]d dev eth0\nroute replace default via %[3]s\n"+
				"addr add %[1]s/%[4]d dev eth1 %[5]s", o.a0, o.bits, o.r1, o.all, o.nodad)
		}, func(o outer) string {
			return fmt.Sprintf("route replace %s/%d via %s", o.a0, o.all, o.a1)
		}}},
	} {
		for _, o := range outers {
			gaps := map[string]time.Duration{}
			for _, engine := range []string{worker.EngineKubeveil, worker.EngineWireGuardGo} {
				t.Run(tc.name+"/"+o.name+"/"+engine, func(t *testing.T) {
					if engine != worker.EngineKubeveil {
						nettest.NeedLong(t, "the reference, whose gaps are compared")
					}

					w := apart(t, engine, o)
					e := w.echoes(t)
					e.flow(t, 50, 30*time.Second)
					e.gap.Store(0)

					for i, place := range []int{nodeA, router} {
						if change := tc.change[i]; change != nil {
							errtest.Must(t, w.spaces[place].IP(t.Context(), change(o)))
						}
					}

					e.flow(t, 100, patience)
					gaps[engine] = time.Duration(e.gap.Load())
					t.Logf("longest gap %s", gaps[engine])
				})
			}
			ours, other := gaps[worker.EngineKubeveil], gaps[worker.EngineWireGuardGo]
			if ours > max(500*time.Millisecond, other+200*time.Millisecond) && other > 0 {
				t.Errorf("%s, %s: the longest gap is %s, that of wireguard-go %s", tc.name, o.name, ours,
					other)
			}
		}
	}
}
