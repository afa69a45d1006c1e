package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/bench/bare"
	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// Ranges of the cluster of a node: the ranges of services, without the addresses of balancers, and
// the range of the backends.
var (
	serviceRanges = []netip.Prefix{
		netip.MustParsePrefix("198.19.0.0/18"), netip.MustParsePrefix("198.19.64.0/19"),
		netip.MustParsePrefix("198.19.96.0/20"),
		netip.MustParsePrefix("198.19.112.0/21"),
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

// ourNode makes the node of a lane one of ours, with everything that veild has in force on it but
// tunnels: the guard at links and in nftables, the rules that keep pods to their addresses, policy
// routing, masquerading, and so connection tracking of all that passes. Endpoints are pods of the
// node, and so is the client unless it is outside.
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
		release, err := bare.Node{Pods: l.clusterRanges(r), Services: serviceRanges,
			Addrs: []netip.Addr{nodeAddr(l.number)}, Pins: g.tableDir(l)}.Apply()
		if err == nil {
			l.undo = append(l.undo, release)
		}
		return err
	})
	if err != nil {
		return err
	}

	return l.load(ctx, func(w io.Writer, _ rules.Node,
		services []rules.Service) error {
		return l.podAddrs(w, services, r)
	}, "nft", "-f", "-")
}

// translate fills a table for the lane and attaches the programs: at links and, for a pod, at
// sockets of the lane's cgroup.
func (g *ground) translate(l *lane, r reach) error {
	return l.node.Do(func() error {
		t, p, err := newTable(g.tableDir(l), l.side != sideRouted)
		if err != nil {
			return err
		}
		l.undo = append(l.undo, t.Close)
		for _, s := range l.size.plan() {
			put(p, s)
		}
		if err := apply(p, t); err != nil {
			return err
		}
		links := link.New(t, slog.New(slog.DiscardHandler))
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

// podAddrs writes the addresses from which pods may send, as the plugin does: for endpoints the
// addresses of the measured services' backends, and for the client its own.
func (l *lane) podAddrs(w io.Writer, services []rules.Service, r reach) error {
	var elements []string
	if r == pod {
		elements = append(elements, fmt.Sprintf("\"client\" . %s", clientAddr(l.number)))
	}

	for i := range endpoints {
		elements = append(elements, fmt.Sprintf("\"end%d\" . %s", i, spread))
	}

	seen := map[netip.Addr]bool{}
	for _, s := range services {
		for _, b := range s.Backends {
			if s.Idle || seen[b] {
				continue
			}
			seen[b] = true
			for i := range endpoints {
				if block(i).Contains(b) {
					elements = append(elements, fmt.Sprintf("\"end%d\" . %s", i, b))
				}
			}
		}
	}

	if len(elements) == 0 {
		return errors.New("no backends")
	}

	_, err := fmt.Fprintf(w, "add element inet %s %s { %s }\n", abi.NFTPodTable,
		abi.NFTPodSet4, strings.Join(elements, ", "))
	return err
}

// tracks reports whether the node tracks connections, which is known once some have passed.
func (l *lane) tracks() (bool, error) {
	var n int
	err := l.node.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err
	})
	return n > 0, err
}
