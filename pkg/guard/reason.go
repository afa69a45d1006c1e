package guard

import (
	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Reason is a reason for which packets are dropped, with its number, its name in metrics and a
// sentence that explains it.
type Reason = bpf.Reason

// Reasons returns all reasons, sorted by number.
func Reasons() []Reason { return bpf.Reasons }

// Harmless reports whether the reason of this name counts packets that every pod sends when it
// starts. Such drops do not indicate an attack or a fault.
func Harmless(reason string) bool { return reason == chains.PodLinkLocal }
