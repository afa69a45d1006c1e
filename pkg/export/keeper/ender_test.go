package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

func enderOfB() *ender {
	return newEnder([]cluster.Site{{Name: "b", PodRanges: nettest.Prefixes("10.245.0.0/16"),
		NodeRanges: nettest.Prefixes("198.51.100.0/24")}}, nettest.Prefixes("10.244.0.0/16"),
		slog.New(slog.DiscardHandler))
}

func opening(proto uint8, endpoint string) cluster.Opening {
	return cluster.Opening{Site: "b", Protocol: proto, Endpoint: netip.MustParseAddrPort(endpoint)}
}

// Only what a site opened to a pod's endpoint that is not open ends, over TCP and UDP.
func TestConnectionsToClosedEndpointsEnd(t *testing.T) {
	connections := []struct {
		client, server string
		udp, stays     bool
	}{
		{"10.245.0.5:40000", "10.244.0.1:80", false, true},
		{"10.245.0.5:40000", "10.244.0.1:81", false, false},
		{"10.245.0.5:40000", "10.244.0.1:80", true, false},
		{"10.245.0.5:40000", "10.244.0.1:53", true, true},
		{"10.245.0.5:40001", "10.244.0.2:80", false, false},
		{"198.51.100.1:40000", "10.244.0.2:80", true, false},
		{"198.51.100.1:40000", "192.0.2.1:6443", false, true}, // the host of a node
		{"203.0.113.1:40000", "10.244.0.2:80", false, true},   // a client outside
		{"10.244.0.2:40000", "10.245.0.5:80", false, true},    // a pod of this cluster
		{"10.244.0.2:40000", "10.244.0.1:81", false, true},    // inside this cluster
	}
	nettest.NewNS(t).Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		var opened []nl.Opened
		var want []string
		for _, o := range connections {
			opened = append(opened, nl.Opened{Client: netip.MustParseAddrPort(o.client),
				Server: netip.MustParseAddrPort(o.server), UDP: o.udp})
			if o.stays {
				want = append(want, fmt.Sprintln(o.client, o.server, o.udp))
			}
		}
		if err := nl.TrackOpened(c, opened); err != nil {
			return err
		}

		e := enderOfB()
		defer e.close()
		if n, err := e.once(); n > 0 || err != nil {
			t.Errorf("before the guard enforces openings %d end: %v", n, err)
		}
		e.inForce([]cluster.Opening{opening(unix.IPPROTO_UDP, "10.244.0.1:53"),
			opening(unix.IPPROTO_TCP, "10.244.0.1:80")})
		n, err := e.once()
		if ends := len(connections) - len(want); n != ends || int(e.ended.Load()) != ends {
			t.Errorf("%d connections end, %d are counted, want %d: %v", n, e.ended.Load(), ends, err)
		}
		if n, err := e.once(); n > 0 || err != nil {
			t.Errorf("the second reading ends %d: %v", n, err)
		}

		var left []string
		err = nl.EachConnection(c, func() { left = nil }, func(c nl.Connection) {
			left = append(left, fmt.Sprintln(netip.AddrPortFrom(c.Client, c.ClientPort),
				netip.AddrPortFrom(c.Server, c.Port), c.Proto == unix.IPPROTO_UDP))
		})
		slices.Sort(left)
		if slices.Sort(want); !slices.Equal(left, want) {
			t.Errorf("left: %q, want %q", left, want)
		}
		return err
	})
}

// Endpoints that flap do not put off the end of connections to others.
func TestFlappingEndpointsDelayNoReading(t *testing.T) {
	flaps := []cluster.Opening{opening(unix.IPPROTO_TCP, "10.244.0.1:80")}
	nettest.NewNS(t).Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		err = nl.TrackOpened(c, []nl.Opened{{Client: netip.MustParseAddrPort("10.245.0.5:40000"),
			Server: netip.MustParseAddrPort("10.244.0.2:80")}})
		if err != nil {
			return err
		}

		e := enderOfB()
		ctx, cancel := context.WithTimeout(t.Context(), settle+time.Second)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			tick := time.NewTicker(settle / 10)
			defer tick.Stop()
			for ctx.Err() == nil {
				e.inForce(flaps)
				e.inForce(nil)
				<-tick.C
			}
		})
		if e.run(ctx); e.ended.Load() != 1 {
			t.Errorf("%d connections end", e.ended.Load())
		}
		return nil
	})
}

// The connections are read after the first openings, and when an endpoint was closed.
func TestConnectionsAreReadWhenAnEndpointIsClosed(t *testing.T) {
	a, b := opening(6, "10.244.0.1:80"), opening(6, "10.244.0.2:80")
	both := []cluster.Opening{a, b}
	e := enderOfB()
	for i, c := range []struct {
		open  []cluster.Opening
		reads bool
	}{{nil, true}, {[]cluster.Opening{a}, false}, {both, false}, {both, false},
		{slices.Clone(both), false}, {[]cluster.Opening{b}, true}, {nil, true}, {nil, false}} {
		e.inForce(c.open)
		select {
		case <-e.wake:
			if !c.reads {
				t.Errorf("step %d reads", i)
			}
		default:
			if c.reads {
				t.Errorf("step %d does not read", i)
			}
		}
	}
}
