package chains

// Names of the reasons that the nftables tables count, in bpf/reasons.go.
const (
	SrcInRange      = "src_in_range"
	DstInRange      = "dst_in_range"
	PodToRange      = "pod_to_range"
	PodToNode       = "pod_to_node"
	Spoofed         = "pod_spoofed_source"
	QuotedInError   = "quoted_in_error"
	Translated      = "source_translated"
	Unmarked        = "pod_unmarked"
	Untranslated    = "pod_to_vip"
	Midstream       = "pod_midstream"
	TunnelToOutside = "tunnel_to_outside"
	ToLoopback      = "to_loopback"
	PodLinkLocal    = "pod_link_local"

	// TunnelUnknownSource counts tunnel datagrams from an address that no known node has: received
	// ones, and those that this node would have sent.
	TunnelUnknownSource = "tunnel_unknown_source"
)
