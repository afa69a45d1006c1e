package guard

import (
	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Reason is why a packet was dropped: its number, its name in metrics, and a sentence for people.
type Reason = bpf.Reason

// Reasons are all reasons, by number.
func Reasons() []Reason { return bpf.Reasons }

// Harmless reports whether the reason of this name counts packets that every pod sends at its
// start. They are not a sign of an attack or a fault.
func Harmless(reason string) bool { return reason == chains.PodLinkLocal }
