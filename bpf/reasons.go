package bpf

import (
	"fmt"
	"strings"
)

// Reason is a reason to drop a packet.
type Reason struct {
	// Number is the index in the map of drops. A number is never used again for another reason.
	Number uint32
	// Name is in snake case. It is the label in metrics and the counter in nftables.
	Name string
	// Sentence explains the drop to an operator.
	Sentence string
}

// Reasons has all reasons, in the order of their numbers. Number 12 is retired.
//
// No frame that a test sends can cause 19, 20 or 21. They are counted when a BPF helper that writes
// to the packet fails (bpf_skb_store_bytes, bpf_l3_csum_replace, bpf_l4_csum_replace). These refuse
// bytes beyond the packet's end, and checksums at odd offsets or beyond 64 KiB. The programs have
// read the bytes before, and their checksums are at even offsets near the start. So a helper fails
// only if the packet's buffer is shared and the kernel has no memory for a copy
// (skb_ensure_writable).
// TestPacketsThatAreCut checks that no length of a packet causes 19 or 20. Reason 21 is about the
// Ethernet header, which every frame has.
var Reasons = []Reason{
	{1, "src_in_range", "The source is in a cluster or service range and the packet was outside " +
		"a tunnel."},
	{2, "dst_in_range",
		"The destination is in a cluster or service range and the packet was outside a tunnel."},
	{3, "pod_to_range",
		"A pod's packet to a cluster or service address was about to leave outside a tunnel."},
	{4, "pod_to_node", "A pod's packet to the address of a node was about to leave outside " +
		"a tunnel."},
	{5, "ethernet_truncated", "The packet ends inside its Ethernet header."},
	{6, "vlan_truncated", "The packet ends inside a VLAN tag."},
	{7, "vlan_depth", "The packet has more than two VLAN tags, or has one on a link without " +
		"Ethernet headers."},
	{8, "ipv4_truncated", "The packet ends inside its IPv4 header."},
	{9, "ipv6_truncated", "The packet ends inside its IPv6 header."},
	{10, "ip_version", "The version in the IP header differs from the frame's EtherType."},
	{11, "pod_spoofed_source", "A pod sent from an address that is not its own."},
	{13, "quoted_in_error",
		"An ICMP error whose inner packet is from inside a tunnel was about to leave " +
			"outside of it."},
	{14, "source_translated",
		"A pod's packet to a node lost its source to another NAT; the reply would have " +
			"come in clear."},
	{15, "pod_unmarked",
		"A pod's packet did not have the mark of pods: the nftables table that sets it " +
			"was missing."},
	{16, "pod_to_vip",
		"A pod's packet to a LoadBalancer IP or external IP of a service was about to " +
			"leave untranslated."},
	{17, "pod_midstream",
		"A pod's TCP packet out of the cluster belonged to a connection whose beginning " +
			"conntrack did not see."},
	{18, "pod_mark_lost",
		"A pod's packet to a node or a cluster or service address was about to leave " +
			"outside a tunnel; another program had removed its mark."},
	{19, "service_rewrite", "The address or port of a packet to or from a service could not be " +
		"rewritten: the node has no memory for it."},
	{20, "service_quote_rewrite", "An ICMP error about a packet of a service could not be " +
		"rewritten: the node has no memory for it."},
	{21, "service_frame",
		"The Ethernet addresses of a packet of a service could not be rewritten: the node " +
			"has no memory for it."},
	{22, "inner_src_in_range",
		"A packet inside the packet has a source in a cluster or service range."},
	{23, "inner_dst_in_range",
		"A packet inside the packet has a destination in a cluster or service range."},
	{24, "inner_to_node",
		"A pod's packet has a packet inside, or a routing header, for the address of a node."},
	{25, "inner_to_vip",
		"A pod's packet has a packet inside, or a routing header, for an address of a service."},
	{26, "inner_truncated",
		"The packet ends inside a header behind its IP header, or such a header cannot be " +
			"read."},
	{27, "inner_depth", "The packet has more headers behind its IP header than are read."},
	{28, "routed_by_range", "A routing header lists an address of a cluster or service range."},
	{29, "neighbour_in_range",
		"ARP or neighbour discovery for an address of a cluster or service " +
			"range was about to leave."},
	{30, "tunnel_to_outside",
		"A packet that came out of a tunnel, and that this node did not translate for a " +
			"service, was about to leave the cluster."},
	{31, "tunnel_unknown_source",
		"A tunnel datagram came from an address that no known node has, or was about to leave " +
			"with such a source."},
	{32, "to_loopback", "A packet from a pod, or out of a tunnel, was for a loopback address of " +
		"the node."},
	{33, "pod_link_local", "A pod's router solicitation, neighbour discovery or multicast report " +
		"had a link-local or unspecified source. Every pod with IPv6 sends such packets at its " +
		"start; they are not a sign of an attack."},
	{34, "pod_no_route", "A pod opened a TCP connection to an address that it has no route to: no pod " +
		"or node has the address, or `outside` leaves it out. The pod got a reset."},
	{35, "site_not_exported", "A packet from another cluster opened a connection to an address and " +
		"port that no ServiceExport opens to it. Or a pod's TCP segment to another cluster belonged " +
		"to no connection that conntrack knows, such as one whose export has ended; the pod got a " +
		"reset."},
}

// PolicyReasons are the reasons to drop a packet in nftables on nodes that enforce NetworkPolicy.
// They have no number, because no BPF program counts them.
var PolicyReasons = []Reason{
	{0, "policy_pending", "veild does not know a pod of the packet yet, so the pod is mute."},
	{0, "policy_ingress", "No policy of the destination allows the packet."},
	{0, "policy_egress", "No policy of the source allows the packet."},
	{0, "policy_midstream", "A TCP segment is not a SYN and belongs to no connection that " +
		"conntrack knows, and a pod of the packet is isolated. Or a packet of UDP or SCTP " +
		"answers a flow that was revoked less than 30 s before."},
	{0, "policy_admin", "A ClusterNetworkPolicy of the Admin tier denies the packet."},
	{0, "policy_baseline", "A ClusterNetworkPolicy of the Baseline tier denies the packet."},
	{0, "policy_unknown_peer", "The peer may have the address of a pod, but the node knows no pod " +
		"with it, and a rule that denies or passes some pods may be meant for that pod."},
	{0, "policy_unstamped", "The nftables table of policies was deleted or flushed, so a pod's " +
		"packet was not judged."},
	{0, "policy_related", "An ICMP error about a known connection came from a pod that is not an " +
		"end of it, or from outside about a connection inside the cluster."},
}

// ConnectionReasons are the reasons to drop a packet that would open a connection, in the nftables
// table kubeveil_limit. They have no number.
var ConnectionReasons = []Reason{
	{0, "pod_connections", "A pod has more tracked connections than one pod may open."},
	{0, "site_connections", "Another cluster has more tracked connections than one may open, or " +
		"opened more than 10,000 within a second."},
}

// EngineReasons are the reasons for which veil-wg with the engine kubeveil drops a packet or
// refuses a request. They have no number, because the process counts them by name (package engine).
var EngineReasons = []Reason{
	{0, "short_datagram", "A datagram is too short for a message of WireGuard."},
	{0, "unknown_type", "A datagram has no message type of WireGuard."},
	{0, "wrong_size", "A handshake message does not have the size of its type."},
	{0, "unknown_index",
		"A message names a session or handshake that does not exist: it ended, or veil-wg was " +
			"restarted."},
	{0, "expired_session", "A packet came under a session older than 180 s."},
	{0, "replayed", "A packet came a second time, or too late for the window of 8,128."},
	{0, "forged", "A packet is not authentic."},
	{0, "handshake_queue_full", "The queue of 1,024 handshake messages was full."},
	{0, "bad_mac1", "A handshake message was not made for this node's public key."},
	{0, "cookie_demanded",
		"Under load, a handshake message had no valid cookie. The reply was a cookie."},
	{0, "rate_limited", "Under load, an address sent handshake messages too fast."},
	{0, "unknown_peer", "A handshake has a public key that belongs to no peer."},
	{0, "handshake_replayed", "An initiation is not newer than the last one of its peer."},
	{0, "handshake_flood", "An initiation came within 20 ms of the last one of its peer."},
	{0, "bad_handshake",
		"A handshake message is not authentic, or a computation with its keys failed."},
	{0, "bad_cookie", "A cookie is not authentic, or nothing waits for it."},
	{0, "no_route",
		"A packet from the node has a destination that is not an allowed IP of a peer."},
	{0, "no_endpoint",
		"A packet or handshake is for a peer without an endpoint, or the device has no " +
			"sockets."},
	{0, "device_down", "The device had no sockets when a packet was sent."},
	{0, "staged_full",
		"Too many packets waited for a session; the oldest of the peer, or the new one, was " +
			"dropped."},
	{0, "staged_given_up", "A packet waited for a session, but no session was made in time."},
	{0, "key_exhausted", "A session has used all counters that the protocol allows."},
	{0, "wrong_source", "A packet from a peer has a source that is not the peer's allowed IP."},
	{0, "tun_refused", "The kernel refused a packet for the node."},
	{0, "send_too_large", "A datagram is larger than the MTU of its interface."},
	{0, "send_no_route", "The node has no route to the endpoint, or no socket of its family."},
	{0, "send_refused", "The node's firewall refused a datagram."},
	{0, "send_full", "The node has no room for a datagram."},
	{0, "send_failed", "The kernel refused a datagram for another reason."},
	{0, "handover_malformed",
		"A successor refused the state of the device as malformed; the process continues."},
	{0, "handover_abandoned", "A successor did not take the device over; the process continues."},
	{0, "configuration_refused",
		"A configuration request was malformed or could not be applied; nothing changed."},
	{0, "tun_too_short", "A packet from the node ends inside a header."},
	{0, "tun_bad_version", "A packet from the node is neither IPv4 nor IPv6."},
	{0, "tun_bad_header_length", "A packet from the node has a wrong header length."},
	{0, "tun_bad_checksum_offset",
		"The vnet header of a packet from the node places the checksum where the packet's " +
			"protocol has none."},
	{0, "tun_bad_gso", "The vnet header of a packet from the node has a kind of segmentation " +
		"that is unknown or not for the packet's protocol."},
	{0, "tun_bad_segment_size",
		"A packet from the node has a vnet header with too small a segment size."},
	{0, "tun_too_many_segments", "A packet from the node has more segments than the kernel makes."},
	{0, "inner_too_short", "A packet from a peer ends inside its IP header."},
	{0, "inner_bad_version", "A packet from a peer is neither IPv4 nor IPv6."},
	{0, "inner_bad_header_length", "A packet from a peer has a wrong IP header length."},
	{0, "inner_bad_total_length",
		"A packet from a peer is shorter than the total length in its IP header."},
}

// HeaderFile and DocumentFile are the files of Header and Document, relative to this directory.
const (
	HeaderFile   = "lib/packet/reasons.h"
	DocumentFile = "../docs/reference/drop-reasons.md"
)

// Header returns the reasons in C.
func Header() string {
	var b strings.Builder
	b.WriteString("/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */\n")
	b.WriteString("/* Code generated from reasons.go. DO NOT EDIT. */\n#pragma once\n\nenum " +
		"drop_reason {\n")
	for _, r := range Reasons {
		fmt.Fprintf(&b, "\tREASON_%s = %d,\n", strings.ToUpper(r.Name), r.Number)
	}
	b.WriteString("};\n")
	return b.String()
}

// Document returns the reasons in Markdown, for operators.
func Document() string {
	var b strings.Builder
	b.WriteString("<!-- Code generated from bpf/reasons.go. DO NOT EDIT. -->\n# Drop reasons\n\n")
	b.WriteString("For operators: why the guard dropped a packet. The name is the `reason` " +
		"label of\n")
	b.WriteString("`kubeveil_plaintext_blocked_total`, and the name of the counter in the " +
		"nftables tables\n")
	b.WriteString("`kubeveil_guard` and `kubeveil_pods`. `veilctl guard` shows both, and " +
		"`veilctl drops` shows [single\n")
	b.WriteString("packets](../operations.md#which-packets-were-dropped). What to alert on:\n")
	b.WriteString("[operations](../operations.md#what-to-alert-on).\n\n")
	b.WriteString("| number | name | meaning |\n|---|---|---|\n")
	for _, r := range Reasons {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", r.Number, r.Name, r.Sentence)
	}
	b.WriteString("\n## Network policies\n")
	b.WriteString("Where `policy` is `kubernetes`: the `reason` label of " +
		"`kubeveil_policy_dropped_total`, and the\n")
	b.WriteString("name of the counter in the nftables tables `kubeveil_policy` and " +
		"`kubeveil_stamp`.\n")
	b.WriteString("`veilctl status -o json` shows them in `policy.drops`.\n\n")
	b.WriteString("| name | meaning |\n|---|---|\n")
	for _, r := range PolicyReasons {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Name, r.Sentence)
	}
	b.WriteString("\n## Too many connections\n")
	b.WriteString("`kubeveil_pod_connections_dropped_total` and " +
		"`kubeveil_site_connections_dropped_total`, and the\ncounters in the nftables table " +
		"`kubeveil_limit`.\n\n")
	b.WriteString("| name | meaning |\n|---|---|\n")
	for _, r := range ConnectionReasons {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Name, r.Sentence)
	}
	b.WriteString("\n## Tunnels of veil-wg\n")
	b.WriteString("With `veil-wg --engine kubeveil`: the `reason` label of " +
		"`kubeveil_tunnel_dropped_total`.\n")
	b.WriteString("`veilctl status -o json` shows them in `devices[].drops`. They begin at 0 " +
		"with each process,\n")
	b.WriteString("and reasons that did not occur are absent.\n\n")
	b.WriteString("| name | meaning |\n|---|---|\n")
	for _, r := range EngineReasons {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Name, r.Sentence)
	}
	b.WriteString("\n## Services\n")
	b.WriteString("The `where` and `reason` labels of `kubeveil_service_refused_total`. A program " +
		"at sockets refuses\n")
	b.WriteString("connections and datagrams. A program at links drops packets, or refuses them " +
		"if no backend is left.\n")
	b.WriteString("`veilctl status -o json` shows the counts in `services.refused`. `veilctl " +
		"drops` shows single\npackets, with `service_` before the name.\n\n")
	b.WriteString("| where | name | meaning |\n|---|---|---|\n")
	for _, c := range ServiceCounts {
		if c.Sentence != "" {
			fmt.Fprintf(&b, "| %s | `%s` | %s |\n", c.Where, c.Name, c.Sentence)
		}
	}
	return b.String()
}
