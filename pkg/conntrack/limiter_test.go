package conntrack

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

func addrsOf(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprint("198.18.0.", i)),
		netip.MustParseAddr(fmt.Sprint("fd42::", i))}
}

func TestPodsBeyondTheLimitAreDecided(t *testing.T) {
	pods := []Pod{{"shop/a", addrsOf(1)}, {"shop/b", addrsOf(2)}, {"shop/c", addrsOf(3)}}
	opened := map[netip.Addr]int{addrsOf(1)[0]: 60, addrsOf(1)[1]: 41, addrsOf(2)[0]: 100,
		addrsOf(3)[1]: 91, netip.MustParseAddr("192.0.2.1"): 5000}
	for name, c := range map[string]struct {
		limit   int
		limited []string
		want    []Usage
	}{
		"both families together":         {100, nil, []Usage{{"shop/a", 101}}},
		"until below nine tenths":        {100, []string{"shop/c"}, []Usage{{"shop/a", 101}, {"shop/c", 91}}},
		"one below is free":              {200, []string{"shop/a"}, nil},
		"no limit":                       {0, []string{"shop/a"}, nil},
		"a pod that is gone is no more":  {100, []string{"shop/z"}, []Usage{{"shop/a", 101}}},
		"every pod that has more counts": {50, nil, []Usage{{"shop/a", 101}, {"shop/b", 100}, {"shop/c", 91}}},
	} {
		limited := map[string][]netip.Addr{}
		for _, pod := range c.limited {
			limited[pod] = nil
		}
		var got []Usage
		for _, d := range decide(pods, opened, c.limit, limited) {
			got = append(got, d.Usage)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestLimitFollowsTheTable(t *testing.T) {
	for _, c := range [][3]int{{-1, 262144, 26214}, {-1, 4, 1}, {500, 262144, 500}, {0, 262144, 0}} {
		if got := limitOf(c[0], c[1]); got != c[2] {
			t.Errorf("%d of a table for %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

const nodeMAC, podMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"

// server holds the addresses of the node. The node answers datagrams at port 53.
var server = []netip.Addr{netip.MustParseAddr("198.18.9.1"), netip.MustParseAddr("fd42:9::1")}

// lab is a node with a server and two pods that can reach it.
type lab struct {
	*Limiter
	t    *testing.T
	node *nettest.NS
	pods map[int]*nettest.NS
	// readings counts the readings of the table; onReading is called before each.
	readings  int
	onReading func()
}

func newLab(t *testing.T, limit int) *lab {
	ip := nettest.NeedProgram(t, "ip")
	l := &lab{t: t, node: nettest.NewNS(t), pods: map[int]*nettest.NS{}}
	l.Limiter = New(LimiterConfig{Limit: limit, Log: slog.New(slog.DiscardHandler),
		Pods: func() ([]Pod, error) {
			l.readings++
			if l.onReading != nil {
				l.onReading()
			}
			return []Pod{{"shop/one", addrsOf(1)}, {"shop/two", addrsOf(2)}}, nil
		}})
	t.Cleanup(func() { l.tracked.close() })
	run := func(ns *nettest.NS, lines ...string) {
		ns.Run(t, func() error {
			return nettest.Feed(strings.Join(lines, "\n")+"\n", ip, "-batch", "-")
		})
	}

	run(l.node, "link set lo up")
	for i := 1; i <= 2; i++ {
		link, pod := fmt.Sprint("vpod", i), nettest.NewNS(t)
		l.pods[i] = pod
		nettest.Veth(t, nettest.End{NS: l.node, Name: link}, nettest.End{NS: pod, Name: "eth0"})
		run(l.node, fmt.Sprintf("link set %s address %s group %d", link, nodeMAC, abi.PodGroup))
		run(pod, "link set eth0 address "+podMAC)
		for f, a := range addrsOf(i) {
			to := netip.PrefixFrom(a, a.BitLen())
			nettest.AddAddr(t, pod, "eth0", to)
			run(pod, fmt.Sprintf("route add %v dev eth0", server[f]),
				fmt.Sprintf("neigh replace %v lladdr %s dev eth0", server[f], nodeMAC))
			run(l.node, fmt.Sprintf("route add %v dev %s", to, link),
				fmt.Sprintf("neigh replace %v lladdr %s dev %s", a, podMAC, link))
		}
	}
	for _, a := range server {
		nettest.AddAddr(t, l.node, "lo", netip.PrefixFrom(a, a.BitLen()))
	}
	for _, a := range server {
		l.serve(a)
	}
	return l
}

func (l *lab) serve(a netip.Addr) {
	l.node.Run(l.t, func() error {
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 53).String())
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 100)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
}

// dial returns a connected socket of a pod.
func (l *lab) dial(pod, family int) (c net.Conn) {
	l.t.Helper()
	l.pods[pod].Run(l.t, func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(server[family], 53).String())
		return err
	})
	l.t.Cleanup(func() { c.Close() })
	return c
}

// asks sends a message over a socket and reports whether it is answered. If want is true, it sends
// the message again until it is answered.
func asks(c net.Conn, want bool) bool {
	for end := time.Now().Add(10 * time.Second); ; {
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		_, _ = c.Write([]byte("x"))
		if n, _ := c.Read(make([]byte, 10)); n > 0 || !want || time.Now().After(end) {
			return n > 0
		}
	}
}

// open adds connections of a pod's address to the table of conntrack.
func (l *lab) open(client netip.Addr, n int) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		to := server[0]
		if client.Is6() {
			to = server[1]
		}
		var opened []nl.Opened
		for i := range n {
			opened = append(opened, nl.Opened{Client: netip.AddrPortFrom(client, uint16(10000+i)),
				Server: netip.AddrPortFrom(to, 80)})
		}
		return nl.TrackOpened(c, opened)
	})
}

// track adds a rule that makes the node track connections, because a namespace without such a rule
// tracks none.
func (l *lab) track() {
	l.t.Helper()
	nft := nettest.NeedProgram(l.t, "nft")
	for _, line := range []string{"add table inet others",
		"add chain inet others input { type filter hook input priority 0; }",
		"add rule inet others input ct state new counter"} {
		l.node.Exec(l.t, nft, line)
	}
}

func (l *lab) look() Status {
	l.t.Helper()
	l.tracked.next = time.Time{}
	l.node.Run(l.t, func() error { return l.step(time.Now()) })
	return l.Status()
}

func TestPodBeyondTheLimitOpensNoMore(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l := newLab(t, 100)
	l.track()
	known := []net.Conn{l.dial(1, 0), l.dial(1, 1)}
	for _, c := range known {
		if !asks(c, true) {
			t.Fatal("the control: a question is not answered")
		}
	}
	if s := l.look(); s.Limited != nil || s.Limit != 100 || s.Max == 0 {
		t.Errorf("idle: %+v", s)
	}

	l.open(addrsOf(1)[0], 60)
	l.open(addrsOf(1)[1], 60)
	if s := l.look(); !slices.Equal(s.Limited, []Usage{{"shop/one", 122}}) {
		t.Fatalf("full: %+v", s)
	}
	for f := range 2 {
		if asks(l.dial(1, f), false) {
			t.Errorf("%v opens a connection beyond the limit", addrsOf(1)[f])
		}
		if !asks(known[f], true) {
			t.Errorf("a known connection of %v does not go on", addrsOf(1)[f])
		}
		if !asks(l.dial(2, f), true) {
			t.Errorf("%v opens no connection, and is not beyond the limit", addrsOf(2)[f])
		}
	}
	dropped := l.look().Dropped
	if dropped < 2 {
		t.Errorf("%d packets are counted, want 2", dropped)
	}

	l.node.Exec(t, nft, "delete table inet "+abi.NFTLimitTable)
	if l.look(); asks(l.dial(1, 0), false) {
		t.Error("after another program has deleted the table, the limit is not in force again")
	}

	l.node.Run(t, nettest.ForgetConnections)
	if s := l.look(); s.Limited != nil || s.Dropped < dropped {
		t.Errorf("empty again: %+v, want none limited and at least %d dropped", s, dropped)
	}
	if !asks(l.dial(1, 0), true) {
		t.Error("below the limit it opens no connection")
	}
	if strings.Contains(l.node.Exec(t, nft, "list tables"), abi.NFTLimitTable) {
		t.Error("a table is left that limits no pod")
	}
}

// Packets above the limit are sampled with the link of their pod. The state of the sampling limit
// survives a change of the limited pods.
func TestPacketsBeyondTheLimitAreSampled(t *testing.T) {
	l := newLab(t, 100)
	l.track()
	var log *nflog.Conn
	l.node.Run(t, func() (err error) {
		log, err = nflog.Open(abi.NFLogGuard, chains.SampleBytes)
		return err
	})
	defer log.Close()
	for i := 1; i <= 2; i++ {
		l.open(addrsOf(i)[0], 110)
		l.look()
		if asks(l.dial(i, 0), false) {
			t.Fatalf("pod %d opens a connection beyond the limit", i)
		}
		end := time.AfterFunc(10*time.Second, func() { log.Close() })
		packets, err := log.Receive()
		end.Stop()
		if err != nil {
			t.Fatalf("no sample of pod %d: %v", i, err)
		}
		p := packets[0]
		if p.Prefix != DropReason || p.Src != addrsOf(i)[0] || p.DstPort != 53 ||
			p.In != l.node.Link(fmt.Sprint("vpod", i)).Attrs().Index {
			t.Errorf("pod %d: %+v", i, p)
		}
	}

	limited := func(rule string) bool { return strings.Contains(rule, "limit rate") }
	before := l.handles(limited)
	l.node.Run(t, nettest.ForgetConnections)
	l.open(addrsOf(1)[0], 110)
	if s := l.look(); len(s.Limited) != 1 || len(before) == 0 ||
		!slices.Equal(l.handles(limited), before) {
		t.Errorf("the rules that sample were made anew: %+v, %v, before %v", s,
			l.handles(limited), before)
	}
	l.node.Run(t, func() error {
		counts, err := l.Drops()
		if err == nil && counts[DropReason] < 2 {
			err = fmt.Errorf("%v are counted", counts)
		}
		return err
	})
}

// handles returns the rules of the nftables table that which selects, with their handles.
func (l *lab) handles(which func(rule string) bool) (rules []string) {
	l.t.Helper()
	text := l.node.Exec(l.t, nettest.NeedProgram(l.t, "nft"), "-a", "list", "table", "inet",
		abi.NFTLimitTable)
	for line := range strings.Lines(text) {
		if which(line) && strings.Contains(line, "log prefix") {
			rules = append(rules, line)
		}
	}
	return rules
}
