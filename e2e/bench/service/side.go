package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/kubeveil/kubeveil/e2e/bench/service/rules"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// Names of sides.
const (
	sideOurs     = "ours"
	sideRouted   = "routed"
	sideDirect   = "direct"
	sideGuarded  = "guarded"
	sideNFTables = "nftables"
	sideIPTables = "iptables"
	sideHAProxy  = "haproxy"
	sideIPVS     = "ipvs"
)

// lane makes a lane of a side and fills its table. Those with a node of ours are others for clients
// outside than for pods; the rest serve both.
func (g *ground) lane(ctx context.Context, side string, s size, r reach) (*lane, error) {
	l, err := g.newLane(ctx, side, s)
	if err != nil {
		return nil, fmt.Errorf("lane %s: %w", side, err)
	}
	switch side {
	case sideDirect:
	case sideNFTables:
		err = l.load(ctx, rules.NFTables, "nft", "-f", "-")
	case sideIPTables:
		err = l.load(ctx, rules.IPTables, "iptables-restore")
	case sideHAProxy:
		err = g.haproxy(ctx, l)
	case sideIPVS:
		err = l.ipvs(ctx)
	case sideGuarded:
		err = g.ourNode(ctx, l, r)
	case sideOurs, sideRouted:
		if err = g.ourNode(ctx, l, r); err == nil {
			err = g.translate(l, r)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lane %s: %w", l, err)
	}
	return l, nil
}

// load feeds rules to a program on the node.
func (l *lane) load(ctx context.Context, write func(io.Writer, rules.Node, []rules.Service) error,
	name string, args ...string) error {
	var b bytes.Buffer
	if err := write(&b, rulesNode(l.number), l.size.plan()); err != nil {
		return err
	}
	cmd := l.node.Command(ctx, nil, name, args...)
	cmd.Stdin = &b
	if _, err := suite.Output(cmd); err != nil {
		return err
	}
	// Closed connections are forgotten soon, so that conntrack has as many as in a cluster with
	// less load. Their number is bounded for the whole machine, and more of them slow down rules.
	return l.node.Sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "2",
		"net/netfilter/nf_conntrack_tcp_timeout_close", "2")
}

// haproxy serves the addresses of balancers from a proxy in the node.
func (g *ground) haproxy(ctx context.Context, l *lane) error {
	var b bytes.Buffer
	if err := rules.HAProxy(&b, l.size.plan(), runtime.NumCPU()); err != nil {
		return err
	}
	config := g.file(l, "haproxy.cfg")
	if err := os.WriteFile(config, b.Bytes(), 0o644); err != nil {
		return err
	}
	var lines []string
	var ports []uint16
	for i, m := range measured {
		lines = append(lines, fmt.Sprintf("address add %s/32 dev lo", externalAddr(i)))
		ports = append(ports, m.port)
	}
	if err := l.node.IP(ctx, lines...); err != nil {
		return err
	}
	if err := l.node.Sysctl("net/ipv4/ip_local_port_range", "1024 65535", "net/ipv4/tcp_tw_reuse",
		"1"); err != nil {
		return err
	}
	return g.daemon(ctx, l.node, ports, g.haproxyPath, "-db", "-f", config)
}

// laneLimits are the sizes of a lane's tables: room for the largest, without that for a million
// backends in each of them.
var laneLimits = service.Limits{Frontends: service.DefaultLimits.Frontends, BackendSlots: 1 << 18,
	Members: 1 << 12, SourceRanges: 1 << 10}

// tableDir is where the table of a lane is pinned.
func (g *ground) tableDir(l *lane) string { return g.pins.Dir(fmt.Sprintf("lane%d", l.number)) }

func newTable(dir string, hostRouting bool) (*bpfmaps.Table, *service.Planner, error) {
	t, err := openTable(bpfmaps.Config{Dir: dir, Limits: laneLimits, Links: true,
		HostRouting: hostRouting})
	if err != nil {
		return nil, nil, err
	}
	p, err := service.New("node", laneLimits)
	if err != nil {
		return nil, nil, errors.Join(err, t.Close())
	}
	return t, p, nil
}

func openTable(c bpfmaps.Config) (*bpfmaps.Table, error) {
	c.Log = slog.New(slog.DiscardHandler)
	return bpfmaps.Open(c)
}

func put(p *service.Planner, s rules.Service) {
	svc, slice := decoded(s)
	p.PutService(svc)
	p.PutSlice(slice)
}

// apply brings a table to what was put.
func apply(p *service.Planner, t *bpfmaps.Table) error {
	c := p.Plan()
	if err := t.Apply(c); err != nil {
		return err
	}
	return errors.Join(p.Problems()...)
}

// proof requires answers from all three endpoints, about as many from each. A node of ours whose
// kernel routes must also track connections, as a node in use does.
func (g *ground) proof(ctx context.Context, l *lane, r reach) error {
	argv := g.self.Argv("who", l.target(r, 0).String())
	out, err := suite.Output(l.command(ctx, r, argv[0], argv[1:]...))
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	var seen map[string]int
	if err := json.Unmarshal(out, &seen); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	if l.side == sideRouted || l.side == sideGuarded {
		if tracks, err := l.tracks(); err != nil || !tracks {
			return fmt.Errorf("%s: its node tracks no connections (%w)", l,
				errors.Join(err, errUntracked))
		}
	}
	return balanced(seen)
}

// errUntracked is the error for a node that is cheaper than the nodes in use.
var errUntracked = errors.New("it would be measured too kindly")

// balanced requires at least a twelfth of the answers from each endpoint, and none from any other.
// One fair choice in 100,000 misses that.
func balanced(seen map[string]int) error {
	if len(seen) != endpoints {
		return fmt.Errorf("answers from %d endpoints, want %d: %v", len(seen), endpoints, seen)
	}
	for i := range endpoints {
		if n := seen[endpointName(i)]; n < asks/12 {
			return fmt.Errorf("%d of %d answers from %s: %v", n, asks, endpointName(i), seen)
		}
	}
	return nil
}
