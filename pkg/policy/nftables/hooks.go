package nftables

import (
	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// ChainAtHook is a chain of the table that the kernel calls.
type ChainAtHook struct {
	Name     string
	Hook     nftables.ChainHook
	Priority nftables.ChainPriority
}

// ChainsAtHooks returns the chains that a packet passes, in this order: input where it goes to this
// node, otherwise postrouting.
func ChainsAtHooks(toNode bool) []ChainAtHook {
	if toNode {
		return []ChainAtHook{{hostErrors, *nftables.ChainHookInput, priorityErrors},
			{abi.NFTPolicyHost, *nftables.ChainHookInput, priorityInput}}
	}
	return []ChainAtHook{{abi.NFTPolicyPost, *nftables.ChainHookPostrouting, priorityPost}}
}
