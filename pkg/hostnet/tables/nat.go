package tables

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// NAT returns the table that masquerades packets from pods that leave through a link which belongs
// neither to a tunnel nor to a pod.
func NAT() *nft.Table {
	return &nft.Table{Name: abi.NFTNatTable, Chains: []nft.Chain{
		nft.Base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
			*nftables.ChainPriorityNATSource,
			nft.All(marked(abi.PodMark), nft.OutGroup(nft.Neq, abi.PodGroup),
				nft.OutGroup(nft.Neq, abi.TunnelGroup), nft.Rule{&expr.Masq{}})),
	}}
}

// marked matches packets whose mark has the bit.
func marked(bit uint32) nft.Rule { return nft.Mark(bit, nft.Eq, bit) }
