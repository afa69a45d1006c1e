package chains

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's packet is recognized by the group of its link. That works from the moment the link
// exists, and needs no program at the link. This file plans the rules. The plugin (pkg/pod) writes
// the elements, one for each address of a pod, and no change of the rules touches them:
//
//	pod ─► vpod… ─► kubeveil_pods (raw-10): mark; source not in @pods: drop ─► kubeveil_guard (raw) ─► route
//
// Packets that a pod's kernel sends by itself from a link-local or unspecified address have their
// own counter.
//
// If only this table is missing, the guard's table drops pods' packets without a mark.

// beforeGuard is before priority raw (-300), where the guard judges by the mark, and so before
// connection tracking (-200) and routing.
const beforeGuard = -310

// podSets are the sets of addresses, in the order of families.
var podSets = []string{abi.NFTPodSet4, abi.NFTPodSet6}

// Pods plans the pods' table. A change of its rules keeps sets and counters, so no pod loses its
// addresses, and a concurrent ADD is not lost. Only if a set has another type is the whole table
// replaced. The daemon's repair of pods then fills the sets.
func Pods() *nft.Table {
	rules := []nft.Rule{
		nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return),
		nft.SetMark(abi.TunnelMark, abi.PodMark),
	}
	t := &nft.Table{Name: abi.NFTPodTable}
	for i, f := range families {
		rules = append(rules, dropForged(f.saddr, podSets[i]))
		t.Sets = append(t.Sets, nft.Set{Shared: true, Set: nftables.Set{Name: podSets[i],
			Concatenation: true, KeyType: nftables.MustConcatSetType(nftables.TypeIFName, f.addr)}})
	}
	t.Chains = []nft.Chain{
		nft.Base(abi.NFTPodChain, nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
			beforeGuard, rules...),
		nft.Target(forgedChain,
			nft.All(nft.Source6.Begins(0xfe, 0x80, 0, 0, 0, 0, 0, 0), nft.Jump(linkLocalChain)),
			nft.All(nft.Source6.Begins(make([]byte, 16)...), nft.Jump(linkLocalChain)),
			Drop(Spoofed)),
		nft.Target(linkLocalChain, dropLinkLocal()...),
	}
	AddDrops(t, PodLinkLocal, Spoofed)
	return t
}

// forgedChain receives the packets with a source that does not belong to their link, and drops all
// of them. It calls linkLocalChain for packets with a link-local or unspecified source.
const forgedChain, linkLocalChain = "forged", "link_local"

// dropLinkLocal drops the packets that the kernel of each network namespace with IPv6 sends by
// itself. They have their own counter. The types of ICMPv6 are from RFC 2710, 4861 and 3810:
// multicast listener and router solicitation, neighbour discovery, version 2 multicast listener
// report.
func dropLinkLocal() (rules []nft.Rule) {
	for _, types := range [][2]byte{{130, 133}, {135, 136}, {143, 143}} {
		rules = append(rules, nft.All(nft.Proto(nft.Eq, unix.IPPROTO_ICMPV6), nft.Rule{
			nft.Load(nft.Transport, 0, 1),
			&expr.Cmp{Op: expr.CmpOpGte, Register: unix.NFT_REG_1, Data: types[:1]},
			&expr.Cmp{Op: expr.CmpOpLte, Register: unix.NFT_REG_1, Data: types[1:]},
		}, Drop(PodLinkLocal)))
	}
	return rules
}

// dropForged sends packets whose source does not belong to their link to the chain forged. The key
// of the set is the link's name and the address.
func dropForged(saddr nft.Field, set string) nft.Rule {
	return nft.All(nft.Family(saddr.Family), nft.Rule{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: nft.Network, Offset: saddr.Offset,
			Len: saddr.Size},
		nft.NotIn(set),
	}, nft.Goto(forgedChain))
}

// passMarked accepts pods' packets with their mark. It drops them while the pods' table is missing.
func passMarked() []nft.Rule {
	return []nft.Rule{
		nft.All(nft.InGroup(nft.Eq, abi.PodGroup), marked(), nft.Return),
		nft.All(nft.InGroup(nft.Eq, abi.PodGroup), Drop(Unmarked)),
	}
}
