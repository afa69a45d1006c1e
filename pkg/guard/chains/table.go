package chains

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// TableNames are the names of our tables.
var TableNames = []string{abi.NFTPodTable, abi.NFTGuardTable}

// Sets of the table. Those of setNames exist for each family: nodes4, nodes6.
const (
	setRanges = "ranges"
	setNodes  = "nodes"
	setVIPs   = "vips"
	setSelf   = "self"
	setOwn    = "own"
	setSource = "source"
	// See datagram.go.
	setEndpoints  = "endpoints"
	setOuter      = "outer"
	setTunnelPort = "tunnel_port"
)

var setNames = []string{setRanges, setNodes, setVIPs, setSelf, setOwn, setSource, setEndpoints,
	setOuter}

// mapNames are the sets that are maps, from the group of tunnels to an address.
var mapNames = []string{setSelf, setSource, setOuter}

// dropReasons are the drop reasons of the table.
var dropReasons = []string{
	SrcInRange, DstInRange, PodToRange, PodToNode, QuotedInError, Translated, Unmarked,
	Untranslated, Midstream, NoRoute, TunnelToOutside, TunnelUnknownSource, ToLoopback,
	SiteNotExported,
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

// loIndex is the index of lo in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
const loIndex = 1

// afterSourceNAT is after priority srcnat (100), where translations are visible.
const afterSourceNAT = 110

// chains returns all chains, jump targets first, except for the chain of sites. They depend only on
// the version.
//
// Every packet of the host is compared with each condition before the one that matches, so the most
// frequent cases come first: packets to pods and into tunnels, packets from them, encrypted
// packets. Rare cases have their own chains. A packet that came from a pod or a tunnel is judged by
// that link (origin.go), before its mark, which another program may have set.
func chains() []nft.Chain {
	in := slices.Concat([]nft.Rule{dropLoopback()}, passMarked(), []nft.Rule{skipTunnelled(),
		nft.All(nft.Meta(expr.MetaKeyIIF, nft.Eq, nft.Native(loIndex)), nft.Return)},
		dropSources(nil), dropDestinations(unserved()))
	out := slices.Concat([]nft.Rule{
		nft.All(nft.OutGroup(nft.Eq, abi.PodGroup), nft.Return),
		nft.All(nft.OutGroup(nft.Eq, abi.TunnelGroup), nft.Goto(chainTunnel)),
		nft.All(nft.InGroup(nft.Eq, abi.PodGroup), nft.Goto(chainInside)),
		nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), nft.Goto(chainTunnelled)),
		nft.All(encrypted(), nft.Return),
		nft.All(nft.Meta(expr.MetaKeyOIF, nft.Eq, nft.Native(loIndex)), nft.Return),
		nft.All(marked(), nft.Jump(chainMarked)),
	}, dropSources(unserved()), dropDestinations(nil), []nft.Rule{passServed()})

	var quotes []nft.Rule
	var all []nft.Chain
	for _, i := range icmps {
		quotes = append(quotes, nft.All(i.match(), nft.Jump(i.chain)))
		all = append(all, nft.Target(i.chain, i.dropQuotes()...))
	}

	out = append(append(out, quotes...), nft.All(marked(), nft.Goto(chainAnswers)))
	return append(all,
		nft.Target(chainTunnel, enterTunnel()...),
		nft.Target(chainMarked, dropMarked()...),
		nft.Target(chainOutside, dropOutside()...),
		nft.Target(chainAnswers, slices.Concat(markAnswers(),
			[]nft.Rule{nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), nft.Jump(chainOutside))},
			dropUntranslated())...),
		nft.Target(chainInside, judgeInside(quotes)...),
		nft.Target(chainTunnelled, judgeTunnelled()...),
		nft.Base("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
			*nftables.ChainPriorityRaw, in...),
		refuseChain(),
		refuseMidstreamChain(),
		restoreChain(),
		midstreamChain(),
		keepChain(),
		takeDatagrams(),
		bindDatagrams(),
		nft.Base("postrouting", nftables.ChainTypeFilter, nftables.ChainHookPostrouting,
			afterSourceNAT, out...),
	)
}

// encrypted matches the packets that a tunnel sends to its peer. They have the tunnels' mark, which
// earlier rules remove from pods' packets (pods.go). If another process of this host sets that
// mark, the programs at links still judge its packets.
func encrypted() nft.Rule {
	return nft.All(nft.Mark(abi.TunnelMark, nft.Neq, 0), nft.Proto(nft.Eq, unix.IPPROTO_UDP))
}

// dropSources drops packets that match before and have a source in the ranges.
func dropSources(before nft.Rule) (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(before, f.saddr.In(f.ranges), Drop(SrcInRange)))
	}
	return rules
}

// dropDestinations drops packets that match before and have a destination in the ranges.
func dropDestinations(before nft.Rule) (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(before, f.daddr.In(f.ranges), Drop(DstInRange)))
	}
	return rules
}

// dropMarked drops pods' packets to the cluster that leave outside a tunnel.
func dropMarked() []nft.Rule {
	var toRanges, toNodes []nft.Rule
	for _, f := range families {
		toRanges = append(toRanges, nft.All(f.daddr.In(f.ranges), Drop(PodToRange)))
		toNodes = append(toNodes, nft.All(f.daddr.In(f.nodes), Drop(PodToNode)))
	}
	return append(toRanges, toNodes...)
}

// newSets returns the sets of the table without elements, except for the sets of sites.
func newSets() (sets []nft.Set) {
	for _, name := range setNames {
		for _, f := range families {
			s := nftables.Set{Name: name + f.version, KeyType: f.addr, Interval: name == setRanges}
			if slices.Contains(mapNames, name) {
				s.IsMap, s.DataType = true, f.addr
				s.KeyType, s.KeyByteOrder = nftables.TypeDevGroup, binaryutil.NativeEndian
			}
			sets = append(sets, nft.Set{Set: s})
		}
	}
	return append(sets, nft.Set{Set: nftables.Set{Name: setTunnelPort,
		KeyType: nftables.TypeInetService}})
}

// put adds addresses to the set or map of their family.
func put(t *nft.Table, addrs []netip.Addr, name string) {
	for _, a := range addrs {
		set, e := t.Set(name+familyOf(a).version), nft.Addr(a)
		if set.IsMap {
			e = nft.Element{Key: string(nft.Native(abi.TunnelGroup)), Value: e.Key}
		}
		set.Elements = append(set.Elements, e)
	}
}
