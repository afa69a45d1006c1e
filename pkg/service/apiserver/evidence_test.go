package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

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
			t.Errorf("after %v the server is probed at once: %t, want %t", c.after, !c.want, c.want)
		}
	}
}

// A server that no other of its family can replace costs no search of sockets.
func TestOnlyReplaceableServersAreSearchedFor(t *testing.T) {
	for _, c := range []struct {
		name          string
		servers, want []netip.AddrPort
	}{
		{"one server", nettest.AddrPorts("198.18.0.1:6443"), nil},
		{"one server of both families", nettest.AddrPorts("198.18.0.1:6443", "[fd00::1]:6443"), nil},
		{"two servers, one of both families",
			nettest.AddrPorts("198.18.0.1:6443", "198.18.0.2:6443", "[fd00::1]:6443"),
			nettest.AddrPorts("198.18.0.1:6443", "198.18.0.2:6443")},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend), Remembered: c.servers})
				for _, s := range a.servers {
					s.up = true
				}
				a.pace.SetNodes(400_000)
				var got []netip.AddrPort
				a.o.Retransmitting = func(s Sockets) ([]netip.AddrPort, error) {
					got = s.Servers
					return nil, nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*lookEvery)
				defer cancel()
				a.askByEvidence(ctx)
				if !slices.Equal(got, c.want) {
					t.Errorf("sockets to %v were searched, want %v", got, c.want)
				}
			})
		})
	}
}

// In a cluster whose nodes ping once in 100 s, a retransmission finds the lost server.
func TestRetransmissionsFindALostServer(t *testing.T) {
	w := newTwoServers(t)
	var lost atomic.Bool
	w.begin(t, func(o *ServersConfig) {
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
	w.begin(t, func(o *ServersConfig) {
		o.Count = func(s Sockets) (map[netip.AddrPort]int, error) {
			return map[netip.AddrPort]int{w.first: 7}, nil
		}
	})
	servicetest.Wait(t, "number of connections", func() error {
		got := w.Status().Servers
		if len(got) != 2 || got[0].Connections != 7 || got[1].Connections != 0 {
			return fmt.Errorf("servers %+v, want 7 and 0 connections", got)
		}
		return nil
	})
}
