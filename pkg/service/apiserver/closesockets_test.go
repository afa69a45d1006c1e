package apiserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

func TestSocketsAreClosedInAllNamespaces(t *testing.T) {
	const own = netns.Own
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		err           error
		closed, asked int
	}{
		"all":                      {nil, 3, 3},
		"one after another's fail": {wrong, 3, 3},
		"by no kernel":             {fmt.Errorf("close: %w", sockdiag.ErrNotSupported), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			closed, err := closeIn([]string{own, "/nowhere", own, own},
				func() bool { return true }, func(string) (int, error) { asked++; return 1, c.err })
			if closed != c.closed || asked != c.asked || !errors.Is(err, c.err) {
				t.Errorf("asked %d namespaces, closed %d, %v", asked, closed, err)
			}
		})
	}
}

func TestClosingEndsWhenTheServerAnswers(t *testing.T) {
	const own = netns.Own
	asked := 0
	closed, err := closeIn([]string{own, own, own}, func() bool { return asked < 2 },
		func(string) (int, error) { asked++; return 1, nil })
	if closed != 2 || err != nil {
		t.Errorf("closed %d sockets: %v, want 2", closed, err)
	}
}

// Stuck connections are closed again only where the first search found connections to the server.
func TestStuckConnectionsAreClosedWhereTheyAre(t *testing.T) {
	client, other := nettest.NewNS(t), nettest.NewNS(t)
	var to netip.AddrPort
	client.OnLink("lo", func(h *nl.Handle, l nl.Link) error { return h.LinkSetUp(l) })
	client.Run(t, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		to = l.Addr().(*net.TCPAddr).AddrPort()
		conn, err := net.Dial("tcp", to.String())
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return err
	})

	all := NewConnections(func() ([]string, error) {
		return []string{"/nowhere", client.Path(), other.Path()}, nil
	})
	c := Closing{Server: to, Stuck: true, Spare: func(uint64) bool { return false },
		Still: func() bool { return true }}
	for i, want := range [][]string{{client.Path()}, {client.Path()}} {
		c.Again = i > 0
		n, took, err := all.Close(c)
		if n != 0 || took <= 0 || err != nil {
			t.Errorf("search %d closed %d idle connections, took %v, %v", i, n, took, err)
		}
		if got := all.silent[to]; !slices.Equal(got, want) {
			t.Errorf("search %d: connections are in %v, want %v", i, got, want)
		}
	}

	c.Stuck, c.Again = false, false
	if n, _, err := all.Close(c); n != 1 || err != nil || len(all.silent) != 0 {
		t.Errorf("at the end %d connections are closed, %v; %v is remembered", n, err, all.silent)
	}
}
