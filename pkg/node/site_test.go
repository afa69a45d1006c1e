package node_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/node"
)

// siteConfig is the configuration of a node with a site.
func siteConfig() config.Config {
	cfg := config.Default()
	cfg.Node = "a"
	cfg.ClusterRanges = nettest.Prefixes("198.19.0.0/17", "fd42:1::/48")
	cfg.ServiceRanges = nettest.Prefixes("198.18.128.0/20", "fd42:2::/112")
	cfg.NodeRanges = nettest.Prefixes("198.18.0.0/24", "fd42::/64")
	cfg.Sites = []cluster.Site{{Name: "b",
		PodRanges:  nettest.Prefixes("198.19.128.0/17", "fd42:5::/48"),
		NodeRanges: nettest.Prefixes("198.18.9.0/24", "fd42:9::/64")}}
	return cfg
}

// Before there is any tunnel, no packet to a site's pods leaves the node, and no packet of a pod to
// a site's nodes. Host processes reach a site's nodes.
func TestRangesOfSitesAreClosedWithoutATunnel(t *testing.T) {
	host, router := nettest.NewHost(t), nettest.NewNS(t)
	nettest.Veth(t, nettest.End{NS: host.NS, Name: "under0",
		Addrs: nettest.Prefixes("198.18.0.1/24", "fd42::1/64")},
		nettest.End{NS: router, Name: "router0",
			Addrs: nettest.Prefixes("198.18.0.254/24", "fd42::fe/64")})
	nettest.AddRoute(t, host.NS, netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParseAddr("198.18.0.254"), "under0")
	nettest.AddRoute(t, host.NS, netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd42::fe"),
		"under0")
	step := newClosing(t, host)

	pods := nettest.Addrs("198.19.130.5", "fd42:5::5")
	nodes := nettest.Addrs("198.18.9.5", "fd42:9::5")
	capture := nettest.NewCapture(t, host.NS, nettest.SnifferOptions{Link: "under0"})
	step.guard()
	for i := range pods {
		step.send(pods[i], 0, "closed")
		step.send(pods[i], abi.PodMark, "closed")
	}
	step.routes()
	for i := range pods {
		step.send(pods[i], 0, "closed")
		step.send(pods[i], abi.PodMark, "closed")
		step.send(nodes[i], abi.PodMark, "closed")
		step.send(nodes[i], 0, fmt.Sprint("open ", nodes[i]))
	}

	leaves := func(payload string) bool {
		for _, f := range capture.Frames() {
			if f.Outgoing && strings.HasSuffix(string(f.Data), payload) {
				return true
			}
		}
		return false
	}
	for _, a := range nodes {
		nettest.Until(t, 5*time.Second, "a host process reaches "+a.String(),
			func() bool { return leaves(fmt.Sprint("open ", a)) })
	}
	for _, f := range capture.All(t) {
		if f.Outgoing && strings.HasSuffix(string(f.Data), "closed") {
			t.Errorf("left in clear: % x", f.Data)
		}
	}
}

// closing closes a host by siteConfig, step by step, and sends packets from it.
type closing struct {
	guard, routes func()
	send          func(to netip.Addr, mark uint32, payload string)
}

func newClosing(t *testing.T, host *nettest.Host) closing {
	t.Helper()
	settings, want := node.Closed(siteConfig(), nil, nil)

	return closing{
		guard: func() {
			host.Run(t, func() error {
				g, err := guard.Open(abi.BPFDir, slog.New(slog.DiscardHandler))
				if err != nil {
					return err
				}
				_, err = g.Apply(settings)
				return errors.Join(err, g.Close())
			})
		},
		routes: func() {
			host.Run(t, func() error {
				h, err := hostnet.Open()
				if err != nil {
					return err
				}
				defer h.Close()
				_, err = h.Sync(hostnet.Plan(want))
				return err
			})
		},
		send: func(to netip.Addr, mark uint32, payload string) {
			host.Run(t, func() error {
				err := sendMarked(netip.AddrPortFrom(to, 7777), mark, payload)
				for _, refused := range []error{unix.EPERM, unix.ENOBUFS, unix.EHOSTUNREACH} {
					if errors.Is(err, refused) {
						return nil
					}
				}
				return err
			})
		},
	}
}

// sendMarked sends a datagram from a socket with a mark.
func sendMarked(to netip.AddrPort, mark uint32, payload string) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		set := func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
		}
		return errors.Join(c.Control(set), err)
	}}
	c, err := d.Dial("udp", to.String())
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(payload))
	return errors.Join(err, c.Close())
}
