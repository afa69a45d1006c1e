package path

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// Datagrams of each size that the path carries arrive, and no others, also if another program has
// the port.
func TestProbe(t *testing.T) {
	nettest.NeedRoot(t)
	ns := [2]*nettest.NS{nettest.NewNS(t), nettest.NewNS(t)}
	nettest.Veth(t, nettest.End{NS: ns[0], Name: "x"}, nettest.End{NS: ns[1], Name: "x"})
	nettest.AddAddr(t, ns[0], "x", nettest.Prefixes("198.51.100.1/24", "2001:db8::1/64")...)
	nettest.AddAddr(t, ns[1], "x", nettest.Prefixes("198.51.100.2/24", "2001:db8::2/64")...)

	for _, to := range []string{"198.51.100.2:51820", "[2001:db8::2]:51820"} {
		t.Run(to, func(t *testing.T) {
			out := &probe{to: to, token: "canary-x", sizes: []int{9000, 1500, 1280}}
			in := &probe{port: 51820, token: "canary-x", sizes: []int{1500, 1280}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var g errgroup.Group
			var got []int
			g.Go(func() error { return ns[0].Do(func() error { return out.send(ctx) }) })
			g.Go(func() error {
				defer cancel()
				return ns[1].Do(func() (err error) {
					got, err = in.receive(ctx)
					return err
				})
			})
			errtest.Must(t, g.Wait())
			if !slices.Equal(got, []int{1500, 1280}) {
				t.Errorf("arrived %v", got)
			}
		})
	}
}

// If the tunnel has UDP_GRO, the receiver's kernel merges a datagram with a longer one before it.
// So each round begins with the shortest.
func TestShortestDatagramIsSentFirst(t *testing.T) {
	at, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	errtest.Must(t, err)
	defer at.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var g errgroup.Group
	defer func() { cancel(); errtest.Check(t, g.Wait()) }()
	p := &probe{to: at.LocalAddr().String(), token: "canary-x", sizes: []int{1500, 1400, 1280}}
	g.Go(func() error { return p.send(ctx) })
	for _, want := range []int{1280, 1400, 1500} {
		n, err := at.Read(make([]byte, 2000))
		errtest.Must(t, err)
		if n+headers(true) != want {
			t.Errorf("a datagram of %d bytes, want %d", n+headers(true), want)
		}
	}
}

// Only a whole datagram of the port with the token counts.
func TestSizeOfAProbe(t *testing.T) {
	packet4 := "\x45\x00\x00\x28" + strings.Repeat("\x00", 5) + "\x11" + strings.Repeat("\x00", 10) +
		"\x00\x01\xca\x6c\x00\x14\x00\x00" + message + "canary-x"
	packet6 := "\x60\x00\x00\x00\x00\x14\x11\x40" + strings.Repeat("\x00", 32) +
		"\x00\x01\xca\x6c\x00\x14\x00\x00" + message + "canary-x"
	p := &probe{port: 51820, token: "canary-x"}
	for name, tt := range map[string]struct {
		packet string
		want   int
	}{
		"IPv4":          {packet4, 40},
		"IPv6":          {packet6, 60},
		"TCP":           {strings.Replace(packet4, "\x11", "\x06", 1), 0},
		"another port":  {strings.Replace(packet4, "\xca\x6c", "\xca\x6d", 1), 0},
		"another token": {strings.Replace(packet6, "canary-x", "canary-y", 1), 0},
		"another type":  {strings.Replace(packet6, message, "\x01\x00\x00\x00", 1), 0},
		"cut":           {packet4[:39], 0},
		"empty":         {"", 0},
	} {
		if got := p.size([]byte(tt.packet)); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// A path that loses everything, or that is too small for a tunnel, is refused both ways.
func TestPathsAreJudged(t *testing.T) {
	a := &End{Veild: config.Config{ClusterRanges: nettest.Prefixes("10.244.0.0/16")}}
	p := &Prober{Here: a}
	to := netip.MustParseAddrPort("198.51.100.2:51820")
	good := Result{From: "x", To: "y", Address: to, Sent: []int{1500}, Arrived: []int{1500}}
	if err := p.judge([]Result{good, good}, false); err != nil {
		t.Error(err)
	}
	lost, small := good, good
	lost.Arrived, small.Arrived = nil, []int{100}
	err := p.judge([]Result{lost, small}, false)
	for _, want := range []string{"no datagram from node x arrives at node y: permit UDP to " +
		"198.51.100.2:51820", "packets of 100 bytes arrive, and a tunnel needs"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if got := lost.String() + "; " + good.String(); got != "x to y at 198.51.100.2:51820: nothing "+
		"arrived; x to y at 198.51.100.2:51820: packets of 1500 bytes arrive" {
		t.Error(got)
	}
}
