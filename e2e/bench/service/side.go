package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/endpoint"
	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// Names of sides. The sides of kube-proxy have the names of its modes.
const (
	sideOurs     = "ours"
	sideRouted   = "routed"
	sideDirect   = "direct"
	sideGuarded  = "guarded"
	sideNFTables = "nftables"
	sideIPTables = "iptables"
	sideHAProxy  = "haproxy"
	sideIPVS     = "ipvs"
	// sideGuardedNFTables is kube-proxy in mode nftables on a node of Kubeveil.
	sideGuardedNFTables = "guarded_nftables"
)

// ourNodes are the sides with a node of Kubeveil.
var ourNodes = []string{sideOurs, sideRouted, sideGuarded, sideGuardedNFTables}

// lane makes a lane of a side and fills its table. A lane with a node of Kubeveil serves only the
// reach r; other lanes serve both reaches.
func (g *ground) lane(ctx context.Context, side string, s size, r reach) (*lane, error) {
	l, err := g.newLane(ctx, side, s)
	if err != nil {
		return nil, fmt.Errorf("lane %s: %w", side, err)
	}
	switch side {
	case sideDirect:
	case sideNFTables, sideIPTables, sideIPVS:
		err = g.kubeProxy(ctx, l)
	case sideHAProxy:
		err = g.haproxy(ctx, l)
	case sideGuarded:
		err = g.ourNode(ctx, l, r)
	case sideGuardedNFTables:
		if err = g.ourNode(ctx, l, r); err == nil {
			err = g.kubeProxy(ctx, l)
		}
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

// syncLimit bounds the time in which kube-proxy must write the rules of a lane. The time grows with
// the square of the number of services, because the kernel searches all maps for a free name for
// the map of each service.
const syncLimit = 2 * time.Minute

// kubeProxy starts kube-proxy, which writes the rules of a lane, and then ends it. The rules
// remain, so that only they affect connections.
func (g *ground) kubeProxy(ctx context.Context, l *lane) error {
	mode := strings.TrimPrefix(l.side, sideGuarded+"_")
	p, err := g.proxyOf(mode, nodeAddr(l.number), g.file(l, "kube-proxy")).Start(ctx, l.node,
		l.size.plan())
	if err != nil {
		return err
	}
	p.Close()
	return l.forgetSoon()
}

// leftOut adds a note that kube-proxy did not write something within its limit. what names the
// figures that are therefore left out.
func (s *run) leftOut(what string, err error) {
	s.Notes = append(s.Notes, fmt.Sprintf("Left out: %s. kube-proxy did not sync within %v.", what,
		syncLimit))
	s.Progress("left out: %s: %v", what, err)
}

// proxyOf returns the description of a kube-proxy in a mode, on a node with the address node, with
// its files in dir.
func (g *ground) proxyOf(mode string, node netip.Addr, dir string) peer.KubeProxy {
	return peer.KubeProxy{Path: g.kubeProxyPath, Mode: mode, Node: node, Pods: clients, Dir: dir,
		Limit: syncLimit}
}

// forgetSoon sets short conntrack timeouts for closed connections, so that conntrack has as few
// entries as in a cluster with less load. The number of entries is limited for the whole machine,
// and more entries slow down rules.
func (l *lane) forgetSoon() error {
	return l.node.Sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "2",
		"net/netfilter/nf_conntrack_tcp_timeout_close", "2")
}

// haproxy starts haproxy in the node of a lane, at the load balancer addresses of the services.
func (g *ground) haproxy(ctx context.Context, l *lane) error {
	var fronts []peer.Frontend
	var lines []string
	var ports []uint16
	for _, o := range l.size.measured() {
		at, port := o.Service.LoadBalancerIPs[0], o.Service.Ports[0].Port
		f := peer.Frontend{Name: o.Service.Name.Name, At: netip.AddrPortFrom(at, port)}
		for e := range o.Slice.Endpoints.All() {
			f.Servers = append(f.Servers, netip.AddrPortFrom(e.Addr, o.Slice.Ports[0].Port))
		}
		fronts, ports = append(fronts, f), append(ports, port)
		lines = append(lines, fmt.Sprintf("address add %s/32 dev lo", at))
	}

	config := g.file(l, "haproxy.cfg")
	text := peer.HAProxy(runtime.NumCPU(), fronts...)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
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

// laneLimits are the limits of a lane's table. They allow the largest table, but not the default of
// a million backends, because each lane has a table.
var laneLimits = service.Limits{Frontends: service.DefaultLimits.Frontends, BackendSlots: 1 << 18,
	SourceRanges: 1 << 10}

// tableDir returns the folder in which the table of a lane is pinned.
func (g *ground) tableDir(l *lane) string { return g.pins.Dir(fmt.Sprintf("lane%d", l.number)) }

func newTable(dir string) (*bpfmaps.Table, *planner.Planner, error) {
	t, err := openTable(bpfmaps.Config{Dir: dir, Limits: laneLimits, Links: true})
	if err != nil {
		return nil, nil, err
	}
	p, err := planner.New("node", laneLimits)
	if err != nil {
		return nil, nil, errors.Join(err, t.Close())
	}
	return t, p, nil
}

func openTable(c bpfmaps.Config) (*bpfmaps.Table, error) {
	c.Log = slog.New(slog.DiscardHandler)
	return bpfmaps.Open(c)
}

func put(p *planner.Planner, o peer.Object) {
	p.PutService(o.Service)
	p.PutSlice(o.Slice)
}

// apply writes the planner's changes to a table. It returns the planner's problems as an error.
func apply(p *planner.Planner, t *bpfmaps.Table) error {
	for again := true; again; {
		c := p.Plan()
		if err := t.Apply(c); err != nil {
			return err
		}
		again = c.Again
	}
	return errors.Join(p.Problems()...)
}

// proof returns an error unless all three endpoints answer, with about as many answers from each.
// On a node of Kubeveil on which the kernel routes, connections must also be tracked, as on a real
// node.
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
	if l.side != sideOurs && slices.Contains(ourNodes, l.side) {
		if tracks, err := l.tracks(); err != nil || !tracks {
			return errors.Join(err, fmt.Errorf("%s: its node tracks no connections, so it would be "+
				"faster than a real one", l))
		}
	}
	return balanced(seen)
}

// balanced returns an error unless each endpoint returned at least a twelfth of the answers, and no
// other server returned any. With a fair choice, the probability of an error is 1 in 100,000.
func balanced(seen map[string]int) error {
	if len(seen) != endpoints {
		return fmt.Errorf("answers from %d endpoints, want %d: %v", len(seen), endpoints, seen)
	}
	for i := range endpoints {
		if n := seen[endpointName(i)]; n < endpoint.Requests/12 {
			return fmt.Errorf("%d of %d answers from %s: %v", n, endpoint.Requests, endpointName(i), seen)
		}
	}
	return nil
}
