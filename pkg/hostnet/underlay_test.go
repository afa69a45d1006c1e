package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
)

func TestUnderlay(t *testing.T) {
	self := addrs("198.18.0.1", "fd42:0:0:1::1")
	gateways := addrs("198.18.0.254", "fd42:0:0:1::fe")
	own := underlay.Link{Name: "under0", MTU: 1500, Addrs: self, Assigned: self, Gateways: gateways}

	with := func(change func(*underlay.Link)) underlay.Link {
		u := own
		change(&u)
		return u
	}
	for _, tt := range []struct {
		name    string
		command string
		nodes   []netip.Addr
		want    underlay.Link
	}{
		{"by default routes", "true", nil, own},
		{"by routes to nodes", "true", addrs("198.18.0.2", "fd42:0:0:1::2"), own},
		{"a smaller interface", "ip link set under0 mtu 1400", addrs("198.18.0.2"),
			with(func(u *underlay.Link) { u.MTU = 1400 })},
		{"a route with an mtu", "ip route add 198.18.9.0/24 via 198.18.0.253 mtu 1380",
			addrs("198.18.9.1"),
			with(func(u *underlay.Link) {
				u.MTU, u.Gateways = 1380, addrs("198.18.0.253", "198.18.0.254", "fd42:0:0:1::fe")
			})},
		{"a route to nodes over two gateways",
			"ip route add 198.18.9.0/24 mtu 1380 nexthop via 198.18.0.252 nexthop via 198.18.0.253",
			addrs("198.18.9.1"),
			with(func(u *underlay.Link) {
				u.MTU, u.Gateways = 1380, addrs("198.18.0.252", "198.18.0.253", "198.18.0.254",
					"fd42:0:0:1::fe")
			})},
		{"another link to nodes", "ip addr add 198.18.7.1/24 dev other0",
			addrs("198.18.7.2", "198.18.7.3"),
			underlay.Link{Name: "other0", MTU: 1450, Addrs: addrs("198.18.7.1"),
				Assigned: addrs("198.18.0.1", "198.18.7.1", "fd42:0:0:1::1"), Gateways: gateways}},
		{"another link to nodes, without a carrier", "ip addr add 198.18.7.1/24 dev other0; " +
			"ip link set other1 down", addrs("198.18.7.2",
			"198.18.7.3"), with(func(u *underlay.Link) {
			u.MTU, u.Assigned = 1450, addrs("198.18.0.1", "198.18.7.1", "fd42:0:0:1::1")
		})},
		{"an address on lo", "ip addr add 198.18.77.1/32 dev lo", nil, with(func(u *underlay.Link) {
			u.Assigned = addrs("198.18.0.1", "198.18.77.1", "fd42:0:0:1::1")
		})},
		{"services of kube-proxy by IPVS",
			"ip link add kube-ipvs0 type veth peer name ipvs1; ip addr add 198.18.128.1/32 dev " +
				"kube-ipvs0", nil, own},
		{"no way to nodes", "ip route add blackhole 198.18.8.0/24; ip route add prohibit " +
			"198.18.9.0/24", addrs("198.18.8.1", "198.18.9.1"), own},
		{"no default route", "ip route del default; ip -6 route del default", nil,
			with(func(u *underlay.Link) { u.Gateways = nil })},
		{"a node inside a range that is closed", "true", addrs("198.18.130.1"), own},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			nettest.Veth(t, nettest.End{NS: l.ns, Name: "other0", MTU: 1450},
				nettest.End{NS: l.ns, Name: "other1"})
			l.apply(dual())
			var got underlay.Link
			l.ns.Run(t, func() (err error) {
				if err := exec.Command("sh", "-ec", tt.command).Run(); err != nil {
					return err
				}
				got, err = l.host.Underlay(tt.nodes, self)
				return err
			})

			if diff := cmp.Diff(tt.want, got,
				cmpopts.IgnoreFields(underlay.Link{}, "Index", "Networks"),
				cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("underlay (-want +got):\n%s", diff)
			}
			if got.Index == 0 {
				t.Error("underlay has no index")
			}
			if len(got.Networks) != len(got.Assigned) {
				t.Errorf("networks %v of the addresses %v", got.Networks, got.Assigned)
			}
		})
	}
}

func TestUnderlayHasTheNetworksOfLinks(t *testing.T) {
	l := newLab(t)
	l.apply(dual())
	var got underlay.Link
	l.ns.Run(t, func() (err error) {
		if err := command("ip link add docker0 type bridge; ip addr add 198.18.130.129/25 dev " +
			"docker0; ip addr add fd42:aaaa:0:2::1/64 dev docker0")(); err != nil {
			return err
		}
		got, err = l.host.Underlay(nil, nil)
		return err
	})
	for _, network := range []string{"198.18.130.128/25", "fd42:aaaa:0:2::/64"} {
		if want := (underlay.Network{Link: "docker0",
			Network: netip.MustParsePrefix(network)}); !slices.Contains(got.Networks, want) {
			t.Errorf("networks %v without %v", got.Networks, want)
		}
	}
}

// A path MTU from an ICMP error, which any host can forge, does not change the underlay. Otherwise
// veild would close the node, or lower the MTU of all its pods.
func TestUnderlayIgnoresLearnedPathMTU(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	for _, tt := range []struct {
		name, host, node string
		forge            func(l *lab, host, router netip.Addr, port, mtu uint16)
	}{
		{"ipv4", "198.18.0.1", "198.18.0.254", forge4},
		{"ipv6", "fd42:0:0:1::1", "fd42:0:0:1::fe", forge6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			host, node := netip.MustParseAddr(tt.host), netip.MustParseAddr(tt.node)
			const port = 123
			l.ns.Run(t, func() error {
				c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port}) // like a time daemon
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			})

			tt.forge(l, host, node, port, 1281)

			// The control: a look-up other than for the configured route returns the learned MTU.
			nettest.Until(t, 5*time.Second, "the kernel to learn the path MTU", func() bool {
				var out []byte
				l.ns.Run(t, func() (err error) {
					out, err = exec.Command("ip", "route", "get", tt.node, "mark",
						fmt.Sprint(abi.TunnelMark)).Output()
					return err
				})
				return strings.Contains(string(out), " mtu 1281")
			})
			l.ns.Run(t, func() error {
				u, err := l.host.Underlay([]netip.Addr{node}, []netip.Addr{host})
				if u.MTU != 1500 {
					t.Errorf("the underlay's MTU is %d, want 1500", u.MTU)
				}
				return err
			})
		})
	}
}

func TestUnderlayNeedsALink(t *testing.T) {
	ns := nettest.NewNS(t)
	ns.Run(t, func() error {
		h, err := Open()
		if err != nil {
			return err
		}
		defer h.Close()
		if _, err := h.Underlay(addrs("198.18.0.2", "fd42::2"),
			addrs("198.18.0.1")); !errors.Is(err, underlay.ErrNone) {
			t.Errorf("underlay: %v, want ErrNone", err)
		}
		return nil
	})
}
