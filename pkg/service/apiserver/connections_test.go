package apiserver

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// A client in its own network namespace is counted, and its retransmissions are found after its
// server has disappeared.
func TestConnectionsOfPodsAreFound(t *testing.T) {
	client, server := nettest.NewNS(t), nettest.NewNS(t)
	addrs := nettest.Prefixes("192.0.2.1/24", "192.0.2.2/24")
	nettest.Veth(t, nettest.End{NS: client, Name: "eth0", Addrs: addrs[:1]},
		nettest.End{NS: server, Name: "eth0", Addrs: addrs[1:]})
	var conn net.Conn
	var to netip.AddrPort
	server.Run(t, func() error {
		l, err := net.Listen("tcp", "192.0.2.2:0")
		if err == nil {
			t.Cleanup(func() { l.Close() })
			to = l.Addr().(*net.TCPAddr).AddrPort()
		}
		return err
	})
	client.Run(t, func() (err error) {
		if conn, err = net.Dial("tcp", to.String()); err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return err
	})

	other := netip.MustParseAddrPort("192.0.2.3:6443")
	c := NewConnections(func() ([]string, error) {
		return []string{"/nowhere", client.Path()}, nil
	})
	s := Sockets{Servers: []netip.AddrPort{other, to}, Spare: func(uint64) bool { return false }}
	spared := s
	spared.Spare = func(uint64) bool { return true }
	if count, err := c.Count(spared); err != nil || len(count) != 0 {
		t.Errorf("connections of probes are counted: %v, %v", count, err)
	}
	count, err := c.Count(s)
	if want := map[netip.AddrPort]int{to: 1}; err != nil || !maps.Equal(count, want) ||
		!slices.Equal(c.clients, []string{client.Path()}) {
		t.Errorf("counted %v in %v, %v, want %v", count, c.clients, err, want)
	}
	if silent, err := c.Retransmitting(s); err != nil || len(silent) != 0 {
		t.Errorf("an idle connection retransmits to %v, %v", silent, err)
	}

	server.OnLink("eth0", func(h *nl.Handle, l nl.Link) error {
		return h.AddrDel(l, &nl.Addr{IPNet: &net.IPNet{IP: addrs[1].Addr().AsSlice(),
			Mask: net.CIDRMask(24, 32)}})
	})
	errtest.Must(t, errtest.Of(conn.Write([]byte("x"))))
	nettest.Until(t, 10*time.Second, "a retransmission", func() bool {
		silent, err := c.Retransmitting(s)
		errtest.Must(t, err)
		return slices.Equal(silent, []netip.AddrPort{to})
	})
}
