package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
)

// protected are the ranges that the guard of a lane protects: backends and ClusterIPs, and not the addresses of balancers,
// which are no part of a cluster's ranges.
var protected = []netip.Prefix{
	netip.MustParsePrefix("198.19.0.0/18"), netip.MustParsePrefix("198.19.64.0/19"), netip.MustParsePrefix("198.19.96.0/20"),
	netip.MustParsePrefix("198.19.112.0/21"), netip.MustParsePrefix("198.19.128.0/17"),
}

// packets makes the node of a lane one that serves clients outside, as veild does: the guard is in force at the client's
// link, endpoints are pods of the node, and the programs at links translate.
func (g *ground) packets(ctx context.Context, l *lane) error {
	var groups []string
	for i := range endpoints {
		groups = append(groups, fmt.Sprintf("link set end%d group %d", i, config.PodGroup))
	}
	if err := l.node.ip(ctx, groups...); err != nil {
		return err
	}
	dir := g.tableDir(l)
	err := l.node.do(func() error {
		guarded, err := guard.Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		l.undo = append(l.undo, guarded.Close)
		_, err = guarded.Apply(guard.Settings{Ranges: protected, NodeAddrs: []netip.Addr{nodeAddr(l.number)}})
		return err
	})
	if err != nil {
		return err
	}
	if err := l.load(ctx, podAddrs, "nft", "-f", "-"); err != nil {
		return err
	}
	return l.node.do(func() error {
		t, p, err := newTable(dir, laneLimits, true)
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
		if err := t.SetSelf([]netip.Prefix{clientNet(l.number)}, []netip.Addr{nodeAddr(l.number)}); err != nil {
			return err
		}
		_, err = t.AttachLinks()
		return err
	})
}

// podAddrs writes that endpoints may send from the addresses of the measured services' backends, as the plugin does for pods.
func podAddrs(w io.Writer, _ rules.Node, services []rules.Service) error {
	var elements []string
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
	_, err := fmt.Fprintf(w, "add element inet %s %s { %s }\n", config.NFTPodTable, config.NFTPodSet4, strings.Join(elements, ", "))
	return err
}
