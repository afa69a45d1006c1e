package policytest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// CompareAddrs lets cmp compare addresses.
var CompareAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// Random objects draw from these values. They are few, so that objects often match each other.
// Outside are addresses that no pod has.
var (
	nsNames   = []string{"a", "b", "c"}
	podNames  = []string{"p", "q", "r"}
	keys      = []string{"app", "tier"}
	values    = []string{"1", "2"}
	portNames = []string{"web", "dns"}
	protos    = []policy.Proto{policy.TCP, policy.UDP, policy.SCTP}
	numbers   = []uint16{1, 53, 80, 81, 82, 65535}
	Outside   = []netip.Addr{netip.MustParseAddr("198.19.0.9"), netip.MustParseAddr("fd42:ff::9")}
	blocks    = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
		netip.MustParsePrefix("198.18.0.0/29"), netip.MustParsePrefix("198.18.0.4/30"),
		netip.MustParsePrefix("198.18.0.2/32"), netip.MustParsePrefix("fd42::/125"),
		netip.MustParsePrefix("198.19.0.0/24"), netip.MustParsePrefix("fd42::4/126"),
	}
)

// PodAddrs returns the pool's i-th addresses.
func PodAddrs(i int) []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("198.18.0.%d", i)),
		netip.MustParseAddr(fmt.Sprintf("fd42::%x", i)),
	}
}

// Pool is the number of pairs of pod addresses: 1 to Pool.
const Pool = 8

// DrawLabels returns random labels.
func DrawLabels(t *rapid.T) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 2).Draw(t, "labels")
}

func drawSelector(t *rapid.T) policy.Selector {
	var s policy.Selector
	for range rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "requirements") {
		r := policy.Requirement{Key: rapid.SampledFrom(keys).Draw(t, "key"),
			Op: rapid.SampledFrom([]policy.Operator{policy.In, policy.In, policy.NotIn,
				policy.Exists,
				policy.DoesNotExist}).Draw(t, "operator")}
		if r.Op == policy.In || r.Op == policy.NotIn {
			r.Values = rapid.SliceOfN(rapid.SampledFrom(values), 1, 2).Draw(t, "values")
		}
		s = append(s, r)
	}
	return s
}

func drawPod(t *rapid.T) policy.Pod {
	p := policy.Pod{
		Name: policy.Name{Namespace: rapid.SampledFrom(nsNames).Draw(t, "ns"),
			Name: rapid.SampledFrom(podNames).Draw(t, "name")},
		Labels:      DrawLabels(t),
		Node:        rapid.SampledFrom([]string{"here", "here", "there", ""}).Draw(t, "node"),
		HostNetwork: rapid.IntRange(0, 9).Draw(t, "hostNetwork") == 0,
		Finished:    rapid.IntRange(0, 9).Draw(t, "finished") == 0,
		Mirror:      rapid.IntRange(0, 9).Draw(t, "mirror") == 0,
	}
	p.UID = p.String() + rapid.SampledFrom([]string{"", "", "", "+"}).Draw(t, "uid")
	if rapid.Bool().Draw(t, "addressed") {
		p.Addrs = PodAddrs(rapid.IntRange(1, Pool).Draw(t, "address"))
	}
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		p.Ports = append(p.Ports, policy.NamedPort{Name: rapid.SampledFrom(portNames).Draw(t,
			"port"),
			Proto: rapid.SampledFrom(protos).Draw(t, "proto"),
			Port:  rapid.SampledFrom(numbers).Draw(t, "number")})
	}
	return p
}

func drawPort(t *rapid.T) policy.Port {
	p := policy.Port{Proto: rapid.SampledFrom(protos).Draw(t, "proto")}
	switch rapid.IntRange(0, 3).Draw(t, "kind of port") {
	case 0:
		p.Name = rapid.SampledFrom(portNames).Draw(t, "port name")
	case 1:
		p.First = rapid.SampledFrom(numbers).Draw(t, "first")
		p.Last = max(p.First, rapid.SampledFrom(numbers).Draw(t, "last"))
	case 2:
		p.First = rapid.SampledFrom(numbers).Draw(t, "first")
		p.Last = p.First
	}
	return p
}

func drawPeer(t *rapid.T) policy.Peer {
	if rapid.IntRange(0, 2).Draw(t, "block") == 0 {
		b := policy.Block{CIDR: rapid.SampledFrom(blocks).Draw(t, "cidr")}
		for _, e := range blocks {
			if e.Bits() > b.CIDR.Bits() && b.CIDR.Overlaps(e) && rapid.Bool().Draw(t, "except") {
				b.Except = append(b.Except, e)
			}
		}
		return policy.Peer{Block: &b}
	}
	var p policy.Peer
	if rapid.Bool().Draw(t, "by namespace") {
		s := drawSelector(t)
		p.Namespaces = &s
	}
	if p.Namespaces == nil || rapid.Bool().Draw(t, "by pod") {
		s := drawSelector(t)
		p.Pods = &s
	}
	return p
}

// drawPeers returns many blocks, or many selectors of few pods each.
func drawPeers(t *rapid.T) []policy.Peer {
	if rapid.IntRange(0, 2).Draw(t, "many blocks") == 0 {
		return drawSome(t, smallBlocks())
	}
	return drawSome(t, smallSelectors())
}

func drawSome(t *rapid.T, of []policy.Peer) (out []policy.Peer) {
	const least = 8 // minPeers of package nftables
	some := rapid.Permutation(of).Draw(t, "order of peers")
	return some[:rapid.IntRange(least, least+4).Draw(t, "many")]
}

// smallBlocks returns blocks of one address, and some that contain several of them.
func smallBlocks() (out []policy.Peer) {
	add := func(p netip.Prefix) {
		out = append(out, policy.Peer{Block: &policy.Block{CIDR: p}})
	}
	for _, p := range blocks {
		if p.Addr().Is4() && p.Bits() >= 30 || p.Bits() >= 126 {
			add(p)
		}
	}
	for i := 1; i <= Pool; i++ {
		for _, a := range PodAddrs(i) {
			add(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// smallSelectors returns peers that select pods by both keys, in the policy's own namespace or in
// namespaces with one label.
func smallSelectors() (out []policy.Peer) {
	is := func(key, value string) policy.Requirement {
		return policy.Requirement{Key: key, Values: []string{value}}
	}
	namespaces := []*policy.Selector{nil}
	for _, key := range keys {
		for _, value := range values {
			namespaces = append(namespaces, &policy.Selector{is(key, value)})
		}
	}
	for _, ns := range namespaces {
		for _, first := range values {
			absent := policy.Requirement{Key: keys[1], Op: policy.DoesNotExist}
			for _, second := range []policy.Requirement{is(keys[1], values[0]),
				is(keys[1], values[1]), absent} {
				out = append(out, policy.Peer{Namespaces: ns,
					Pods: &policy.Selector{is(keys[0], first), second}})
			}
		}
	}
	return out
}

func drawPolicy(t *rapid.T) policy.Policy {
	p := policy.Policy{
		Name: policy.Name{Namespace: rapid.SampledFrom(nsNames).Draw(t, "ns"),
			Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name")},
		Subjects: drawSelector(t),
		Isolates: [2]bool{rapid.Bool().Draw(t, "ingress"), rapid.Bool().Draw(t, "egress")},
	}

	for d := range p.Rules {
		for range rapid.IntRange(0, 2).Draw(t, "rules") {
			var r policy.Rule
			for range rapid.IntRange(0, 2).Draw(t, "peers") {
				r.Peers = append(r.Peers, drawPeer(t))
			}
			for range rapid.IntRange(0, 2).Draw(t, "ports") {
				r.Ports = append(r.Ports, drawPort(t))
			}
			if rapid.IntRange(0, 3).Draw(t, "many peers") == 0 { // enough for a union in the table
				r.Peers = append(r.Peers, drawPeers(t)...)
			}
			if rapid.IntRange(0, 3).Draw(t, "many ports") == 0 { // enough for a set in the table
				shift := rapid.IntRange(0, len(protos)-1).Draw(t, "shift")
				for i, n := range numbers {
					r.Ports = append(r.Ports, policy.Port{Proto: protos[(i+shift)%len(protos)],
						First: n, Last: n})
				}
			}
			p.Rules[d] = append(p.Rules[d], r)
		}
	}

	if rapid.IntRange(0, 9).Draw(t, "invalid") == 0 {
		p.Invalid = "cannot be parsed"
	}
	return p
}

// Change makes one random change of the World, and passes it to the planner.
func (w *World) Change(t *rapid.T, p *planner.Planner) {
	switch rapid.IntRange(0, 13).Draw(t, "change") {
	case 10, 11, 12, 13:
		w.changeCluster(t, p)
	case 0:
		ns := policy.Namespace{Name: rapid.SampledFrom(nsNames).Draw(t, "ns"),
			Labels: DrawLabels(t)}
		w.Namespaces[ns.Name] = ns
		p.PutNamespace(ns)
	case 1:
		name := rapid.SampledFrom(nsNames).Draw(t, "ns")
		delete(w.Namespaces, name)
		p.DeleteNamespace(name)
	case 2, 3, 4:
		pod := drawPod(t)
		w.Pods[pod.Name] = pod
		p.PutPod(pod)
	case 5:
		name := drawPod(t).Name
		delete(w.Pods, name)
		p.DeletePod(name)
	case 6, 7:
		np := drawPolicy(t)
		w.Policies[np.Name] = np
		p.PutPolicy(np)
	case 8:
		name := drawPolicy(t).Name
		delete(w.Policies, name)
		p.DeletePolicy(name)
	case 9:
		pod := drawPod(t)
		key := policy.Key{Name: pod.Name, UID: pod.UID}
		var addrs []netip.Addr
		if i := rapid.IntRange(0, Pool).Draw(t, "attached"); i > 0 {
			addrs = PodAddrs(i)
		}
		// IPAM assigns an address once.
		for other, has := range w.Attached {
			if other != key && len(addrs) > 0 && has[0] == addrs[0] {
				return
			}
		}
		delete(w.Attached, key)
		if len(addrs) > 0 {
			w.Attached[key] = addrs
		}
		p.SetAttached(key, addrs)
	}
}

// NewWorld returns an empty cluster, as the node "here" sees it.
func NewWorld() *World {
	return &World{Node: "here", Namespaces: map[string]policy.Namespace{},
		Pods: map[policy.Name]policy.Pod{}, Policies: map[policy.Name]policy.Policy{},
		Attached: map[policy.Key][]netip.Addr{}, Cluster: map[string]policy.ClusterPolicy{}}
}

// DrawWorld returns an empty cluster with random options.
func DrawWorld(t *rapid.T) *World {
	w := NewWorld()
	w.AllowOwnNode = rapid.Bool().Draw(t, "allow the own node")
	return w
}

// NewPlanner returns a planner with the node and the options of the World.
func (w *World) NewPlanner() *planner.Planner {
	p := planner.New(w.Node)
	p.SetOptions(w.Options)
	return p
}

// TellAll passes everything to a new planner, in any order.
func (w *World) TellAll() *planner.Planner {
	p := w.NewPlanner()
	tell := []func(){func() { p.SetRanges(w.Ranges) },
		func() { p.SetNodes(maps.Clone(w.Nodes)) }, func() { p.SetNodeAddrs(w.nodeAddrs()) }}
	for _, v := range w.Cluster {
		tell = append(tell, func() { p.PutClusterPolicy(v) })
	}
	for _, v := range w.Policies {
		tell = append(tell, func() { p.PutPolicy(v) })
	}
	for _, v := range w.Pods {
		tell = append(tell, func() { p.PutPod(v) })
	}
	for _, v := range w.Namespaces {
		tell = append(tell, func() { p.PutNamespace(v) })
	}
	for k, v := range w.Attached {
		tell = append(tell, func() { p.SetAttached(k, v) })
	}

	order := make(map[int]func(), len(tell))
	for i, f := range tell {
		order[i] = f
	}
	for _, f := range order { // a map's order is random
		f()
	}
	return p
}

// Flows returns all first packets between the addresses of the universe.
func Flows() (out []policy.Flow) {
	addrs := slices.Clone(Outside)
	for i := 1; i <= Pool; i++ {
		addrs = append(addrs, PodAddrs(i)...)
	}

	for _, src := range addrs {
		for _, dst := range addrs {
			if src.Is4() != dst.Is4() {
				continue
			}
			for i, f := range []policy.Flow{{FromPod: true, ToPod: true}, {FromPod: true},
				{ToPod: true}, {FromPod: true, ToNode: true}} {
				f.Src, f.Dst, f.Proto, f.Port = src, dst, 1, 0
				out = append(out, f)
				for j, port := range []uint16{1, 53, 80, 82, 8080} {
					f.Proto, f.Port = protos[(i+j)%len(protos)], port
					out = append(out, f)
					if f.Proto == policy.TCP {
						f.Midstream = true
						out = append(out, f)
						f.Midstream = false
					}
				}
			}
		}
	}
	return out
}
