package tables

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// NAT masquerades packets from pods that leave by a link which is neither a tunnel nor another
// pod, at postrouting, where the kernel translates sources.
func NAT() *nft.Table {
	return &nft.Table{Name: abi.NFTNatTable, Chains: []nft.Chain{
		nft.Base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
			*nftables.ChainPriorityNATSource,
			nft.All(marked(abi.PodMark), nft.OutGroup(nft.Neq, abi.PodGroup),
				nft.OutGroup(nft.Neq, abi.TunnelGroup), nft.Rule{&expr.Masq{}})),
	}}
}

// marked matches packets with that bit in their mark.
func marked(bit uint32) nft.Rule { return nft.Mark(bit, nft.Eq, bit) }
