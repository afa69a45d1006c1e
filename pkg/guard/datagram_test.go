package guard

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// datagramEnds are the addresses of a node and a peer, and further addresses of theirs that no Node
// has.
var datagramEnds = []struct{ own, peer, ownOther, peerOther string }{
	{"198.19.0.1", "198.19.0.2", "198.19.0.91", "198.19.0.77"},
	{"fd42:9::1", "fd42:9::2", "fd42:9::91", "fd42:9::77"},
}

// udpPort is the port to which udp sends.
const udpPort = 7777

// newDatagrams returns a node with the addresses of datagramEnds, and a function that puts
// Datagrams in force.
func newDatagrams(t *testing.T) (*node, func(d *Datagrams)) {
	t.Helper()
	n := newNode(t, clsact)
	s := lab()
	for _, e := range datagramEnds {
		nettest.AddAddr(t, n.NS, "u0", host(e.ownOther))
		nettest.AddAddr(t, n.peer, "u0", host(e.peerOther))
		s.SelfAddrs = append(s.SelfAddrs, netip.MustParseAddr(e.own))
	}
	return n, func(d *Datagrams) {
		t.Helper()
		s.Datagrams = d
		n.Run(t, func() error {
			_, err := n.g.Apply(s)
			return err
		})
	}
}

// Tunnel datagrams are accepted from believed nodes only, until any source is allowed.
func TestDatagramsOfUnknownSourcesAreDropped(t *testing.T) {
	n, set := newDatagrams(t)
	var believed, others []netip.Addr
	for _, e := range datagramEnds {
		believed = append(believed, netip.MustParseAddr(e.peer))
		others = append(others, netip.MustParseAddr(e.peerOther))
	}

	strict := &Datagrams{Port: udpPort, Sources: believed}
	for _, step := range []struct {
		situation     string
		d             *Datagrams
		peer, unknown bool
	}{
		{"nothing is known yet", nil, true, true},
		{"added to any", &Datagrams{Port: udpPort, Sources: believed, Add: true}, true, true},
		{"of believed nodes", strict, true, false},
		{"as before", nil, true, false},
		{"none is added", &Datagrams{Port: udpPort, Sources: []netip.Addr{}, Add: true}, true,
			false},
		{"others are added", &Datagrams{Port: udpPort, Sources: others, Add: true}, true, true},
		{"of believed nodes alone", strict, true, false},
		{"on another port", &Datagrams{Port: udpPort + 1, Sources: believed}, true, true},
		{"there are no believed nodes", &Datagrams{Port: udpPort, Sources: []netip.Addr{}}, false,
			false},
		{"of believed nodes again", strict, true, false},
		{"roaming", &Datagrams{}, true, true},
	} {
		set(step.d)
		for _, e := range datagramEnds {
			for from, taken := range map[string]bool{e.peer: step.peer, e.peerOther: step.unknown} {
				send := func() error { return udp(n.peer, from, e.own, 0) }
				if taken {
					if got := source(t, n.NS, e.own, send); got != from {
						t.Errorf("%s: a datagram from %s came from %s", step.situation, from, got)
					}
					continue
				}

				before := n.counters(t)[chains.TunnelUnknownSource]
				nettest.Until(t, patience, step.situation+": a datagram from "+from+" is counted",
					func() bool {
						errtest.Must(t, send())
						return n.counters(t)[chains.TunnelUnknownSource] > before
					})
			}
		}
	}
}

// Tunnel datagrams leave from an address that a Node has, with correct checksums from each rule
// that computes them. Datagrams of other programs keep their source.
func TestDatagramsLeaveFromANodesAddress(t *testing.T) {
	ethtool := nettest.NeedProgram(t, "ethtool")
	for _, offload := range []string{"on", "off"} {
		t.Run("checksum offload "+offload, func(t *testing.T) {
			n, set := newDatagrams(t)
			n.Run(t, func() error { return nettest.Command(ethtool, "-K", "u0", "tx", offload) })
			for _, step := range []struct {
				situation string
				d         *Datagrams
				bound     bool
			}{
				{"nothing is known yet", nil, false},
				{"bound", &Datagrams{Bind: true}, true},
				{"as before", nil, true},
				{"roaming", &Datagrams{}, false},
			} {
				set(step.d)
				for _, e := range datagramEnds {
					check := func(from, want string, mark uint32) {
						t.Helper()
						got := source(t, n.peer, e.peer,
							func() error { return udp(n, from, e.peer, mark) })
						if got != want {
							t.Errorf("%s: a datagram from %s, mark %#x, comes from %s, want %s",
								step.situation, from, mark, got, want)
						}
					}

					want := e.ownOther
					if step.bound {
						want = e.own
					}

					check(e.ownOther, want, abi.TunnelMark)
					check(e.own, e.own, abi.TunnelMark)
					check(e.ownOther, e.ownOther, 0)
				}
			}
		})
	}
}

// If this node has no address of a family, a tunnel's datagram leaves only while peers accept it.
func TestDatagramsWithoutANodesAddressStay(t *testing.T) {
	for i, e := range datagramEnds {
		n, _ := newDatagrams(t)
		other := datagramEnds[1-i]
		for _, step := range []struct {
			situation string
			self      string
			d         *Datagrams
			leaves    bool
		}{
			{"bound to the other family", other.own, &Datagrams{Bind: true}, false},
			{"as before", other.own, nil, false},
			{"not bound", other.own, &Datagrams{}, true},
			{"bound to a contested address", e.ownOther, &Datagrams{Bind: true}, true},
		} {
			s := lab()
			s.SelfAddrs, s.Datagrams = addrs(step.self), step.d
			n.Run(t, func() error {
				_, err := n.g.Apply(s)
				return err
			})

			if step.leaves {
				if got := source(t, n.peer, e.peer, func() error {
					return udp(n, e.ownOther, e.peer, abi.TunnelMark)
				}); got != e.ownOther {
					t.Errorf("%s: a datagram from %s comes from %s", step.situation, e.ownOther, got)
				}
				continue
			}
			before := n.counters(t)[chains.TunnelUnknownSource]
			if err := udp(n, e.ownOther, e.peer, abi.TunnelMark); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: a datagram from %s: %v, want %v", step.situation, e.ownOther, err,
					unix.EPERM)
			}
			if now := n.counters(t)[chains.TunnelUnknownSource]; now != before+1 {
				t.Errorf("%s: %d datagrams were counted", step.situation, now-before)
			}
		}
	}
}

// No datagram of a believed node is lost while the sets are filled and emptied: they change in one
// transaction.
func TestDatagramSetsAreChangedAtOnce(t *testing.T) {
	open, strict := Plan(Settings{Datagrams: &Datagrams{}}, nil),
		Plan(Settings{Datagrams: &Datagrams{Port: 7, Sources: addrs("198.19.0.2", "fd42:9::2")}},
			nil)
	for _, c := range []struct {
		situation  string
		have, want *Kernel
		op         string
	}{
		{"filled", open, strict, "write nftables table kubeveil_guard: set endpoints4 +1 -0, " +
			"set endpoints6 +1 -0, set tunnel_port +1 -0"},
		{"emptied", strict, open, "write nftables table kubeveil_guard: set endpoints4 +0 -1, " +
			"set endpoints6 +0 -1, set tunnel_port +0 -1"},
	} {
		if diff := cmp.Diff([]string{c.op}, texts(Diff(c.have, c.want))); diff != "" {
			t.Errorf("%s: %s", c.situation, diff)
		}
	}
}
