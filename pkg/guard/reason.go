package guard

import "github.com/kubeveil/kubeveil/bpf"

// Reason is why a packet was dropped: its number, its name in metrics, and a sentence for people.
type Reason = bpf.Reason

// Reasons are all reasons, by number.
func Reasons() []Reason { return bpf.Reasons }

// Harmless reports whether the reason of this name counts packets that every pod sends at its
// start. They are not a sign of an attack or a fault.
func Harmless(reason string) bool { return reason == podLinkLocal }

// Names of the reasons that the nftables tables count, in bpf/reasons.go.
const (
	srcInRange      = "src_in_range"
	dstInRange      = "dst_in_range"
	podToRange      = "pod_to_range"
	podToNode       = "pod_to_node"
	spoofed         = "pod_spoofed_source"
	quotedInError   = "quoted_in_error"
	translated      = "source_translated"
	unmarked        = "pod_unmarked"
	untranslated    = "pod_to_vip"
	midstream       = "pod_midstream"
	tunnelToOutside = "tunnel_to_outside"
	toLoopback      = "to_loopback"
	podLinkLocal    = "pod_link_local"

	// TunnelUnknownSource counts tunnel datagrams from an address that no known node has: received
	// ones, and those that this node would have sent.
	TunnelUnknownSource = "tunnel_unknown_source"
)
