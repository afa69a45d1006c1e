package guard

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Sets of the table.
const (
	setRanges4 = "ranges4"
	setRanges6 = "ranges6"
	setNodes4  = "nodes4"
	setNodes6  = "nodes6"
	setVIPs4   = "vips4"
	setVIPs6   = "vips6"
	setSelf4   = "self4"
	setSelf6   = "self6"
	setOwn4    = "own4"
	setOwn6    = "own6"
	setSource4 = "source4"
	setSource6 = "source6"
	// See datagram.go.
	setEndpoints4 = "endpoints4"
	setEndpoints6 = "endpoints6"
	setOuter4     = "outer4"
	setOuter6     = "outer6"
	setTunnelPort = "tunnel_port"
)

// setNames are all sets. The port comes last: without it no datagram is dropped, so the accepted
// addresses are filled before it.
var setNames = []string{
	setRanges4, setRanges6, setNodes4, setNodes6, setVIPs4, setVIPs6,
	setSelf4, setSelf6, setOwn4, setOwn6, setSource4, setSource6,
	setEndpoints4, setEndpoints6, setOuter4, setOuter6, setTunnelPort,
}

// mapNames are the sets that are maps, from the group of tunnels to an address.
var mapNames = []string{setSelf4, setSelf6, setSource4, setSource6, setOuter4, setOuter6}

// tableCounters are the drop reasons of the table, and MarksRestored.
var tableCounters = []string{
	srcInRange, dstInRange, podToRange, podToNode, quotedInError, translated, unmarked,
	untranslated, midstream, tunnelToOutside, TunnelUnknownSource, toLoopback, MarksRestored,
}

// chain is a chain of the table. A chain without a hook is a jump target.
type chain struct {
	name     string
	typ      nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []rule
}

// Names of chains that are jump targets.
const (
	chainTunnel    = "into_tunnel"
	chainInside    = "from_inside"
	chainTunnelled = "from_tunnels"
	chainMarked    = "of_pods"
	chainQuotes4   = "quotes4"
	chainQuotes6   = "quotes6"
	chainAnswers   = "of_pods_outside"
	chainOutside   = "from_tunnels_outside"
)

// rule is a rule and its text, which the kernel stores as the rule's comment.
type rule struct {
	text  string
	exprs []expr.Any
}

// afterSourceNAT is after priority srcnat (100), where translations are visible.
const afterSourceNAT = 110

// chains are all chains, jump targets first. They depend only on the version.
//
// Every packet of the host evaluates each condition before its own, so the most frequent come
// first: packets to pods and into tunnels, packets from them, encrypted ones. Rare cases have
// chains of their own. A packet that came from a pod or a tunnel is judged by that link
// (origin.go), before its mark, which another program may have set.
func chains() []chain {
	in := append(append([]rule{dropLoopback()}, passMarked()...), skipTunnelled(),
		ruleOf(onLo("iif", expr.MetaKeyIIF), expr.VerdictReturn, ""))
	in = append(append(in, dropSources(nil)...), dropDestinations(unserved())...)
	pods := &match{fmt.Sprintf("mark %#x", abi.PodMark), marked()}
	out := []rule{
		ruleOf(ofGroup("oif", expr.MetaKeyOIFGROUP, abi.PodGroup), expr.VerdictReturn, ""),
		ruleOf(ofGroup("oif", expr.MetaKeyOIFGROUP, abi.TunnelGroup), expr.VerdictGoto,
			chainTunnel),
		ruleOf(inGroup(abi.PodGroup), expr.VerdictGoto, chainInside),
		ruleOf(inGroup(abi.TunnelGroup), expr.VerdictGoto, chainTunnelled),
		ruleOf(encrypted(), expr.VerdictReturn, ""),
		ruleOf(onLo("oif", expr.MetaKeyOIF), expr.VerdictReturn, ""),
		ruleOf(pods, expr.VerdictJump, chainMarked),
	}

	out = append(append(out, dropSources(unserved())...), dropDestinations(nil)...)
	out = append(out, passServed())
	var all []chain

	var quotes []rule
	for _, i := range icmps {
		quotes = append(quotes, ruleOf(i.match(), expr.VerdictJump, i.chain))
		all = append(all, chain{name: i.chain, rules: i.dropQuotes()})
	}

	out = append(append(out, quotes...), ruleOf(pods, expr.VerdictGoto, chainAnswers))
	return append(all,
		chain{name: chainTunnel, rules: enterTunnel()},
		chain{name: chainMarked, rules: dropMarked()},
		chain{name: chainOutside, rules: dropOutside()},
		chain{name: chainAnswers, rules: slices.Concat(markAnswers(),
			[]rule{ruleOf(inGroup(abi.TunnelGroup), expr.VerdictJump, chainOutside)},
			dropUntranslated())},
		chain{name: chainInside, rules: judgeInside(quotes)},
		chain{name: chainTunnelled, rules: judgeTunnelled()},
		chain{"prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
			nftables.ChainPriorityRaw, in},
		refuseChain(),
		refuseMidstreamChain(),
		restoreChain(),
		midstreamChain(),
		keepChain(),
		takeDatagrams(),
		bindDatagrams(),
		chain{"postrouting", nftables.ChainTypeFilter, nftables.ChainHookPostrouting,
			nftables.ChainPriorityRef(afterSourceNAT), out},
	)
}

// ruleOf applies the verdict to matching packets.
func ruleOf(m *match, kind expr.VerdictKind, to string) rule {
	text := strings.TrimPrefix(m.text+map[expr.VerdictKind]string{expr.VerdictReturn: " return",
		expr.VerdictGoto: " goto ", expr.VerdictJump: " jump "}[kind]+to, " ")
	return rule{text, append(slices.Clone(m.exprs), &expr.Verdict{Kind: kind, Chain: to})}
}

// ofGroup matches packets that come in, or go out, by a link of a group.
func ofGroup(name string, key expr.MetaKey, group uint32) *match {
	return &match{fmt.Sprintf("%sgroup %#x", name, group), []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)},
	}}
}

func onLo(name string, key expr.MetaKey) *match {
	return &match{name + " lo", []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(loIndex)},
	}}
}

// encrypted matches packets that a tunnel sends to its peer by the tunnels' mark, which pods'
// packets lose first (pods.go). If another process of this host sets that mark, the programs at
// links still judge its packets.
func encrypted() *match {
	return &match{fmt.Sprintf("mark %#x meta l4proto udp", abi.TunnelMark),
		append(hasMark(abi.TunnelMark),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}})}
}

func dropSources(before *match) []rule {
	return []rule{
		drop("ip saddr", setRanges4, srcInRange, before),
		drop("ip6 saddr", setRanges6, srcInRange, before),
	}
}

func dropDestinations(before *match) []rule {
	return []rule{
		drop("ip daddr", setRanges4, dstInRange, before),
		drop("ip6 daddr", setRanges6, dstInRange, before),
	}
}

// dropMarked drops pods' packets to the cluster that leave by no tunnel.
func dropMarked() []rule {
	return []rule{
		drop("ip daddr", setRanges4, podToRange, nil),
		drop("ip6 daddr", setRanges6, podToRange, nil),
		drop("ip daddr", setNodes4, podToNode, nil),
		drop("ip6 daddr", setNodes6, podToNode, nil),
	}
}

// fields are the positions of addresses in headers.
var fields = map[string]struct {
	proto       byte
	offset, len uint32
}{
	"ip saddr":  {unix.NFPROTO_IPV4, 12, 4},
	"ip daddr":  {unix.NFPROTO_IPV4, 16, 4},
	"ip6 saddr": {unix.NFPROTO_IPV6, 8, 16},
	"ip6 daddr": {unix.NFPROTO_IPV6, 24, 16},
}

// match is a condition and its text.
type match struct {
	text  string
	exprs []expr.Any
}

// drop drops and counts packets that match and have the field in the set; a nil match matches all.
func drop(field, set, counter string, before *match) rule {
	r := rule{text: fmt.Sprintf("%s @%s counter %s drop", field, set, counter)}
	if before != nil {
		r = rule{before.text + " " + r.text, slices.Clone(before.exprs)}
	}
	r.exprs = append(append(r.exprs, load(field)...),
		&expr.Lookup{SourceRegister: 1, SetName: set},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter},
		&expr.Verdict{Kind: expr.VerdictDrop})
	return r
}

// table is the content of the nftables table.
type table struct {
	// shape describes chains, rules, sets and counters, one line each; "" is no table.
	shape string
	// sets are the sorted elements by set; for maps, the values.
	sets map[string][]element
}

// element is an address, or the interval from first to before end. An interval to the end of the
// address space has an invalid end. In a set of ports it is a port.
type element struct {
	first, end netip.Addr
	port       uint16
}

// planTable plans the table. It is pure.
func planTable(s Settings) table {
	t := table{shape: plannedShape(), sets: make(map[string][]element)}
	for _, p := range s.Ranges {
		if slices.ContainsFunc(s.Ranges, func(q netip.Prefix) bool {
			return q.Bits() < p.Bits() && q.Overlaps(p)
		}) {
			continue // the kernel refuses intervals that overlap
		}
		name := setRanges6
		if p.Addr().Is4() {
			name = setRanges4
		}
		t.sets[name] = append(t.sets[name], element{first: p.Addr(), end: lastOf(p).Next()})
	}
	t.put(s.NodeAddrs, setNodes4, setNodes6)
	t.put(s.VIPs, setVIPs4, setVIPs6)
	t.put(selfAddrs(s.PodPrefixes), setSelf4, setSelf6)
	t.put(s.SelfAddrs, setOwn4, setOwn6)
	t.put(sourceAddrs(s.SelfAddrs), setSource4, setSource6)
	t.datagrams(s.Datagrams, s.SelfAddrs)
	t.sort()
	return t
}

// put adds addresses to the set of their family.
func (t table) put(addrs []netip.Addr, four, six string) {
	for _, a := range addrs {
		name := six
		if a.Is4() {
			name = four
		}
		t.sets[name] = append(t.sets[name], element{first: a})
	}
}

func (t table) sort() {
	for _, elements := range t.sets {
		slices.SortFunc(elements, func(a, b element) int {
			return cmp.Or(a.first.Compare(b.first), a.end.Compare(b.end),
				cmp.Compare(a.port, b.port))
		})
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// plannedShape is shape for chains().
func plannedShape() string {
	var lines shapeLines
	for _, c := range chains() {
		lines.planned(c)
	}
	for _, name := range setNames {
		lines.add("set %s", name)
	}
	for _, name := range tableCounters {
		lines.add("counter %s", name)
	}
	return lines.String()
}

// shapeLines collects the lines of a shape in any order.
type shapeLines []string

func (s *shapeLines) add(format string, args ...any) {
	*s = append(*s, fmt.Sprintf(format, args...))
}

func (s *shapeLines) chain(name string, typ nftables.ChainType, hook uint32, priority int32,
	policy uint32) {
	s.add("chain %s type %s hook %d priority %d policy %d", name, typ, hook, priority, policy)
}

// planned adds the lines of a chain.
func (s *shapeLines) planned(c chain) {
	if c.hook == nil {
		s.add("chain %s", c.name)
	} else {
		s.chain(c.name, c.typ, uint32(*c.hook), int32(*c.priority),
			uint32(nftables.ChainPolicyAccept))
	}
	for i, r := range c.rules {
		s.rule(c.name, i, r.text)
	}
}

func (s *shapeLines) rule(chain string, i int, text string) {
	s.add("rule %s %d %s", chain, i, text)
}

func (s shapeLines) String() string {
	slices.Sort(s)
	var b bytes.Buffer
	for _, line := range s {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// diffTable replaces the table if its shape is wrong, else changes elements only. It is pure.
func diffTable(have, want table) []Op {
	if have.shape != want.shape {
		return []Op{opTable(want)}
	}
	var first, ops []Op
	for _, name := range setNames {
		add, remove := minus(want.sets[name], have.sets[name]),
			minus(have.sets[name], want.sets[name])
		switch {
		case len(add)+len(remove) == 0:
		case name == setTunnelPort && len(add) == 0:
			// Before accepted addresses are removed.
			first = append(first, opElements(name, add, remove))
		default:
			ops = append(ops, opElements(name, add, remove))
		}
	}
	return append(first, ops...)
}
