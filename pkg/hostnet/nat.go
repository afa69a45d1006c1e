package hostnet

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// natTable masquerades at postrouting, where the kernel translates sources.
func natTable() nftTable {
	return nftTable{name: abi.NFTNatTable, chains: []nftChain{{
		Chain: nftables.Chain{
			Name: "postrouting", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		},
		rules: [][]expr.Any{natExprs()},
	}}}
}

// natExprs masquerades packets from pods that leave by a link which is neither a
// tunnel nor another pod:
//
//	meta mark & PodMark == PodMark oifgroup != PodGroup oifgroup != TunnelGroup masquerade
func natExprs() []expr.Any {
	notGroup := func(group uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1,
				Data: binary.NativeEndian.AppendUint32(nil, group)},
		}
	}
	exprs := append(marked(abi.PodMark), notGroup(abi.PodGroup)...)
	exprs = append(exprs, notGroup(abi.TunnelGroup)...)
	return append(exprs, &expr.Masq{})
}

// marked matches packets with that bit in their mark.
func marked(bit uint32) []expr.Any {
	mark := binary.NativeEndian.AppendUint32(nil, bit)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark},
	}
}
