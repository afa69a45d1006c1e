package chains

import (
	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// AtHook is a chain of the table that the kernel calls.
type AtHook struct {
	Name     string
	Hook     nftables.ChainHook
	Priority nftables.ChainPriority
}

// AtHooks returns the chains that a packet passes, in this order: input where it goes to this
// node, otherwise postrouting.
func AtHooks(toNode bool) []AtHook {
	if toNode {
		return []AtHook{{hostErrors, *nftables.ChainHookInput, priorityErrors},
			{abi.NFTPolicyHost, *nftables.ChainHookInput, priorityInput}}
	}
	return []AtHook{{abi.NFTPolicyPost, *nftables.ChainHookPostrouting, priorityPost}}
}
