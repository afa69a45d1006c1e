package agent

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// manyNodes returns the configuration and the nodes of a dual-stack cluster. The first node is this
// node.
func manyNodes(n int) (config.Config, []cluster.Node) {
	cfg := config.Default()
	cfg.Node = "node-00000"
	cfg.ClusterRanges = prefixes("100.64.0.0/10", "fd42:aaaa::/32")
	cfg.ServiceRanges = prefixes("198.19.0.0/16", "fd42:2::/112")
	cfg.NodeRanges = prefixes("198.18.0.0/16")
	nodes := make([]cluster.Node, 0, n)
	for i := range n {
		nodes = append(nodes, benchNode(i, i, 0))
	}
	return cfg, nodes
}

// benchNode returns node i with the addresses and prefixes at a place, and its key number k.
func benchNode(i, place, k int) cluster.Node {
	name := fmt.Sprintf("node-%05d", i)
	addr := netip.AddrFrom4([4]byte{198, 18, byte(place / 250), byte(1 + place%250)})
	pods := []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + place/256), byte(place), 0}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd42:aaaa:0:%x::/64", place)),
	}
	return cluster.Node{
		Name: name, Created: time.Date(2026, 1, 1, 0, 0, i*7919%1000, 0, time.UTC),
		Addresses: []netip.Addr{addr}, PodPrefixes: pods,
		Claim: &cluster.Claim{
			Keys: []cluster.Key{{
				Public: wgkey.Public(sha256.Sum256(fmt.Append(nil, name, k)))}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(addr, 51820)},
			PodPrefixes: pods, MTU: 1500, Features: cluster.Features(),
		},
	}
}

// meter adds up the CPU time of the process by step.
type meter struct {
	order []string
	spent map[string]time.Duration
	last  time.Duration
}

func processTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// start ends the time that belongs to no step.
func (m *meter) start() { m.last = processTime() }

// done adds the time since the last call to a step.
func (m *meter) done(step string) {
	if m.spent == nil {
		m.spent = map[string]time.Duration{}
	}
	now := processTime()
	if _, ok := m.spent[step]; !ok {
		m.order = append(m.order, step)
	}
	m.spent[step] += now - m.last
	m.last = now
}

func (m *meter) report(b *testing.B) {
	var all time.Duration
	for _, step := range m.order {
		all += m.spent[step]
		b.ReportMetric(m.spent[step].Seconds()*1000/float64(b.N), "ms-"+step)
	}
	b.ReportMetric(all.Seconds()*1000/float64(b.N), "ms-CPU")
}

// BenchmarkOneChangedNode measures the CPU time of the steps of a turn in which one node changed,
// without the kernel: it got a new key, or it moved to other addresses and prefixes.
func BenchmarkOneChangedNode(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		for what, change := range map[string]func(round int) cluster.Node{
			"key":  func(round int) cluster.Node { return benchNode(500, 500, round) },
			"move": func(round int) cluster.Node { return benchNode(500, n+round%2, round) },
		} {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) { oneChangedNode(b, n, change) })
		}
	}
}

func oneChangedNode(b *testing.B, n int, change func(round int) cluster.Node) {
	cfg, nodes := manyNodes(n)
	key, err := wgkey.Generate()
	errtest.Must(b, err)
	nodes[0].Claim.Keys = []cluster.Key{{Public: key.Public()}} // as this node published it
	table, err := source.NewWriter(filepath.Join(b.TempDir(), "table"), true)
	errtest.Must(b, err)
	state := cluster.State{Revision: 1, Synced: true, Nodes: nodes,
		APIServers: addrs("203.0.113.1")}
	tunnels := tunnel.NewManager(&tunneltest.Fake{}, time.Now)
	in := plan.Inputs{Config: cfg, Key: key, Complete: true, Synced: true, UnderlayMTU: 1500,
		LocalAddrs: nodes[0].Addresses}
	var last *cluster.Table
	var before plan.Decision
	var have *hostnet.State
	var resolver cluster.Resolver
	var planned plan.Planner
	turn := func(m *meter) {
		m.start()
		rules := in.Config.Rules(nil)
		added, _ := cluster.AddedRanges(rules, state, last)
		rules.ServiceRanges = slices.Concat(rules.ServiceRanges, added)
		in.Table, _ = resolver.Resolve(rules, withOwnKey(state, cfg.Node, key.Public()), last)
		m.done("resolve")
		d := planned.Decide(in)
		m.done("decide")
		if len(d.Problems) > 0 {
			b.Fatal(d.Problems)
		}
		before.Guard.Equal(d.Guard)
		m.done("guard")
		errtest.Must(b, errtest.Of(tunnels.Sync(b.Context(), d.Tunnel)))
		m.done("tunnels")
		if have == nil || !sameRoutes(before.Host, d.Host) {
			want := hostnet.Plan(d.Host)
			m.done("routes-plan")
			if have != nil {
				hostnet.Diff(*have, want)
			}
			have = &want
		}
		m.done("routes-diff")
		planned.ProbePeers(in, d)
		m.done("probe")
		if last == nil || !reflect.DeepEqual(*last, in.Table) {
			m.done("table-equal")
			errtest.Must(b, table.Write(in.Table, planned.Changed))
		}
		m.done("table")
		resolved := in.Table
		last, before = &resolved, d
	}
	turn(&meter{})
	turn(&meter{})

	var m meter
	for b.Loop() {
		state.Revision++
		state.Nodes = slices.Clone(state.Nodes)
		state.Nodes[500] = change(int(state.Revision))
		turn(&m)
	}
	m.report(b)
}

// sameRoutes compares what Host.SyncWant compares and the rounds of this benchmark change.
func sameRoutes(a, b hostnet.Want) bool {
	return (plan.SameSlice(a.Peers, b.Peers) ||
		slices.EqualFunc(a.Peers, b.Peers, hostnet.Peer.Equal)) &&
		slices.Equal(a.NodeAddrs, b.NodeAddrs)
}
