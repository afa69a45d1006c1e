package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// balancers are addresses of the peer that a service has and no node.
var balancers = []string{"198.19.0.99", "fd42:9::99"}

// newBalanced returns a node with a pod. The peer is a load balancer whose addresses the guard
// closes. Other programs masquerade packets that leave to the peer, and publish the pod at port
// 7780 of the node.
func newBalanced(t *testing.T) (*node, *nettest.NS) {
	t.Helper()
	needTCX(t)
	n := newNode(t, tcx)
	pod := n.addPod(t)
	for _, addr := range balancers {
		a := netip.MustParseAddr(addr)
		nettest.AddAddr(t, n.peer, "u0", netip.PrefixFrom(a, a.BitLen()))
	}
	n.Run(t, func() error {
		if _, err := n.g.Apply(withVIPs(balancers...)); err != nil {
			return err
		}
		return runNFT(`table inet others {
			chain source { type nat hook postrouting priority 100; oifname u0 ip daddr 198.19.0.99 masquerade; oifname u0 ip6 daddr fd42:9::99 masquerade; };
			chain destination { type nat hook prerouting priority -100; iifname u0 tcp dport 7780 dnat ip to 198.18.5.5; iifname u0 tcp dport 7780 dnat ip6 to fd42:1::5; };
		}`)
	})
	return n, pod
}

func withVIPs(addrs ...string) Settings {
	s := lab()
	s.VIPs = nettest.Addrs(addrs...)
	return s
}

// A pod's packets to a balancer's address do not leave without a translation, masqueraded or not.
func TestPodsDoNotReachAddressesOfServices(t *testing.T) {
	n, pod := newBalanced(t)
	for _, to := range balancers {
		n.loses(t, "a datagram to a balancer", chains.Untranslated, pod, to, 0)
		err := pod.Do(func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(to, "7780"), patience)
			if err == nil {
				c.Close()
			}
			return err
		})
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a connection to %s: %v, want it refused", to, err)
		}
		n.delivers(t, "the node's own", to)
	}
	// Without the table, the programs at links drop the packets.
	n.Run(t, func() error { return runNFT("delete table inet kubeveil_guard") })
	for _, to := range balancers {
		n.loses(t, "a datagram to a balancer, without the table", chains.Untranslated, pod, to, 0)
	}
	// An address that no service has any more is open again.
	n.apply(t)
	for _, to := range balancers {
		wantReceived(t, n, pod, to)
	}
}

// A load balancer that connects from its own address gets replies, regardless of the program that
// translates: only connection tracking shows that they are replies.
func TestPodsAnswerBalancers(t *testing.T) {
	n, pod := newBalanced(t)
	for i, from := range balancers {
		err := n.reachPod(pod, from, []string{"198.19.0.1", "fd42:9::1"}[i])
		if err != nil {
			t.Errorf("a connection from %s: %v; dropped %v", from, err, n.counters(t))
		}
		n.loses(t, "a datagram to a balancer", chains.Untranslated, pod, from, 0)
	}
}

// reachPod connects from an address of the peer to the pod, by the node's port.
func (n *node) reachPod(pod *nettest.NS, from, node string) error {
	var l net.Listener
	err := pod.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort("", "7780"))
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	return n.peer.Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
		c, err := d.Dial("tcp", net.JoinHostPort(node, "7780"))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// The closed addresses stay in the map when the process ends, and are read back.
func TestAddressesOfServicesAreReadBack(t *testing.T) {
	needTCX(t)
	n := newNode(t, tcx)
	for _, vips := range [][]string{balancers, balancers[:1], nil} {
		n.Run(t, func() error {
			if _, err := n.g.Apply(withVIPs(vips...)); err != nil {
				return err
			}
			ops, err := n.g.Apply(withVIPs(vips...))
			if len(ops) > 0 {
				err = errors.Join(err, fmt.Errorf("the second time it changed %v", texts(ops)))
			}
			return err
		})
		var got []string
		for _, a := range n.read(t).VIPs {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(vips, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	}
}
