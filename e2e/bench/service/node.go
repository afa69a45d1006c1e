package service

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/bench/bare"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// serviceRanges are the service ranges of the cluster, without the addresses of load balancers.
// backendRange is the range of the backends.
var (
	serviceRanges = []netip.Prefix{
		netip.MustParsePrefix("198.19.0.0/18"), netip.MustParsePrefix("198.19.64.0/19"),
		netip.MustParsePrefix("198.19.96.0/20"), netip.MustParsePrefix("198.19.112.0/21"),
	}
	backendRange = netip.MustParsePrefix("198.19.128.0/17")
)

// clusterRanges returns the ranges of pods in a lane: the range of the backends, and the client's
// range when the client is a pod.
func (l *lane) clusterRanges(r reach) []netip.Prefix {
	if r == pod {
		return []netip.Prefix{backendRange, clientNet(l.number)}
	}
	return []netip.Prefix{backendRange}
}

// ourNode makes the node of a lane a node of Kubeveil without tunnels: with the guard at links and
// in nftables, the rules that restrict pods to their addresses, policy routing and masquerading.
// Masquerading makes the node track all connections. The endpoints are pods of the node, and so is
// the client unless it is outside.
func (g *ground) ourNode(ctx context.Context, l *lane, r reach) error {
	var lines []string
	for i := range endpoints {
		_, far := wire(l.number, i)
		lines = append(lines, fmt.Sprintf("link set end%d group %d", i, abi.PodGroup),
			fmt.Sprintf("route add %s via %s table %d", block(i), far, abi.TablePod))
	}

	if r == pod {
		lines = append(lines, fmt.Sprintf("link set client group %d", abi.PodGroup),
			fmt.Sprintf("route add %s dev client table %d", clientAddr(l.number), abi.TablePod))
	}

	lines = append(lines, spreadRoute(l.number, abi.TablePod))
	if err := l.node.IP(ctx, lines...); err != nil {
		return err
	}

	err := l.node.Do(func() error {
		release, err := bare.GuardedNode{Pods: l.clusterRanges(r), Services: serviceRanges,
			Addrs: []netip.Addr{nodeAddr(l.number)}, Pins: g.tableDir(l)}.Apply()
		if err == nil {
			l.undo = append(l.undo, release)
		}
		return err
	})
	if err != nil {
		return err
	}

	cmd := l.node.Command(ctx, nil, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(l.podAddrs(r))
	if _, err := suite.Output(cmd); err != nil {
		return err
	}
	return l.forgetSoon()
}

// translate fills a service table for the lane and attaches the programs at links and, for a pod,
// at the sockets of the lane's cgroup.
func (g *ground) translate(l *lane, r reach) error {
	return l.node.Do(func() error {
		t, p, err := newTable(g.tableDir(l))
		if err != nil {
			return err
		}
		l.undo = append(l.undo, t.Close)
		for _, o := range l.size.plan() {
			put(p, o)
		}
		if err := apply(p, t); err != nil {
			return err
		}
		links := link.New(t, link.Options{HostRouting: l.side != sideRouted,
			Log: slog.New(slog.DiscardHandler)})
		l.undo = append(l.undo, links.CloseConntrack)
		if err := links.SetSelf([]netip.Prefix{clientNet(l.number)},
			[]netip.Addr{nodeAddr(l.number)}); err != nil {
			return err
		}
		if _, err := links.AttachLinks(); err != nil || r != pod {
			return err
		}
		_, err = t.AttachSockets(l.group.Name())
		return err
	})
}

// podAddrs returns the command of nft(8) that adds the addresses from which pods may send, as the
// CNI plugin does. Endpoints may use the addresses of the measured services' backends; a client
// that is a pod may use its own address.
func (l *lane) podAddrs(r reach) string {
	var elements []string
	if r == pod {
		elements = append(elements, fmt.Sprintf("\"client\" . %s", clientAddr(l.number)))
	}

	for i := range endpoints {
		elements = append(elements, fmt.Sprintf("\"end%d\" . %s", i, spread))
	}

	seen := map[netip.Addr]bool{}
	for _, o := range l.size.measured() {
		for e := range o.Slice.Endpoints.All() {
			if seen[e.Addr] {
				continue
			}
			seen[e.Addr] = true
			for i := range endpoints {
				if block(i).Contains(e.Addr) {
					elements = append(elements, fmt.Sprintf("\"end%d\" . %s", i, e.Addr))
				}
			}
		}
	}

	return fmt.Sprintf("add element inet %s %s { %s }\n", abi.NFTPodTable, abi.NFTPodSet4,
		strings.Join(elements, ", "))
}

// tracks reports whether the node tracks connections. It counts conntrack entries, so some
// connections must have passed before.
func (l *lane) tracks() (is bool, err error) {
	err = l.node.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		is = err == nil && strings.TrimSpace(string(b)) != "0"
		return err
	})
	return is, err
}
