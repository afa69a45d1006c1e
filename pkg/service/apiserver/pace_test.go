package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

func TestProbesSlowDownWithTheCluster(t *testing.T) {
	for name, c := range map[string]struct {
		nodes         int64
		ping, connect time.Duration
	}{
		"unknown":      {0, 250 * time.Millisecond, 500 * time.Millisecond},
		"1,000 nodes":  {1000, 250 * time.Millisecond, 500 * time.Millisecond},
		"10,000 nodes": {10000, 2500 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			p.nodes.Store(c.nodes)
			if got := p.ping(); got != c.ping {
				t.Errorf("pings every %v, want %v", got, c.ping)
			}
			var connects time.Duration
			for range 1000 {
				if got := phase(p.ping()); got < 0 || got >= c.ping {
					t.Fatalf("phase %v of %v", got, c.ping)
				}
				got := p.connect()
				if got < c.connect/2 || got >= c.connect*3/2 {
					t.Fatalf("connects after %v, want about %v", got, c.connect)
				}
				connects += got / 1000
			}
			if connects < c.connect*9/10 || connects > c.connect*11/10 {
				t.Errorf("connects every %v in the mean, want %v", connects, c.connect)
			}
		})
	}
}

// A probe that pings once in 100 s pings at once when ask receives a value.
func TestProbeIsAsked(t *testing.T) {
	addr, freeze, _ := testServer(t, true)
	ask := make(chan struct{}, 1)
	said := probing(t, addr, func(p *probe) {
		p.ask = ask
		p.pace.nodes.Store(400_000)
	})
	until(t, said, true)
	freeze()
	ask <- struct{}{}
	until(t, said, false)
}

func TestServersAreAskedOnceASecond(t *testing.T) {
	addr := netip.MustParseAddrPort("198.18.0.1:6443")
	a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
		Remembered: []netip.AddrPort{addr}})
	asked := func() bool {
		select {
		case <-a.servers[addr].ask:
			return true
		default:
			return false
		}
	}
	silent, now := []netip.AddrPort{addr, netip.MustParseAddrPort("198.18.0.9:1")}, time.Now()
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {askPause / 2, false}, {askPause, true}} {
		if a.ask(silent, now.Add(c.after)); asked() != c.want {
			t.Errorf("after %v it is asked: %t, want %t", c.after, !c.want, c.want)
		}
	}
}

// In a cluster whose nodes ping once in 100 s, a retransmission finds the lost server.
func TestRetransmissionsFindALostServer(t *testing.T) {
	w := newTwoServers(t)
	var lost atomic.Bool
	w.begin(t, func(o *Options) {
		o.Retransmitting = func(s Sockets) ([]netip.AddrPort, error) {
			if !slices.Contains(s.Servers, w.first) || !lost.Load() {
				return nil, nil
			}
			return []netip.AddrPort{w.first}, nil
		}
	})
	w.waitBoth(t) // on a busy machine that may need several connects
	w.SetNodes(400_000)
	trip := w.Status().Servers[0].RoundTrip
	servicetest.Wait(t, "the last ping for 100 s", func() error {
		if w.Status().Servers[0].RoundTrip == trip {
			return errors.New("no ping was answered")
		}
		return nil
	})
	w.freeze()
	lost.Store(true)
	w.waitBackends(t, w.second)
}

func TestConnectionsAreCounted(t *testing.T) {
	w := newTwoServers(t)
	w.begin(t, func(o *Options) {
		o.Count = func(s Sockets) (map[netip.AddrPort]int, error) {
			return map[netip.AddrPort]int{w.first: 7}, nil
		}
	})
	servicetest.Wait(t, "number of connections", func() error {
		got := w.Status().Servers
		if len(got) != 2 || got[0].Connections != 7 || got[1].Connections != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}
