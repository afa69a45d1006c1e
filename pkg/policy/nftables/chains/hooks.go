package chains

import (
	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// AtHook is a base chain of the table.
type AtHook struct {
	Name     string
	Hook     nftables.ChainHook
	Priority nftables.ChainPriority
}

// AtHooks returns the base chains that a packet passes, in order. toNode reports whether the packet
// goes to this node. If so, it passes input, otherwise postrouting.
func AtHooks(toNode bool) []AtHook {
	if toNode {
		return []AtHook{{hostErrors, *nftables.ChainHookInput, priorityErrors},
			{abi.NFTPolicyHost, *nftables.ChainHookInput, priorityInput}}
	}
	return []AtHook{{abi.NFTPolicyPost, *nftables.ChainHookPostrouting, priorityPost}}
}
