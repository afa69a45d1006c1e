package bpf

import (
	"fmt"
	"strings"
)

// Reason is why a packet was dropped.
type Reason struct {
	// Number is the index in the map of drops. No other reason ever gets it.
	Number uint32
	// Name is in snake case. It is the label in metrics and the counter in nftables.
	Name string
	// Sentence explains the drop to an operator.
	Sentence string
}

// Reasons has all reasons, in the order of their numbers. Number 12 is retired.
//
// No frame raises 19, 20 or 21, so no test does. The programs have read every byte that they
// rewrite, and the checksums are at even offsets below 64 KiB. The helpers then fail only if the
// packet's buffer is shared and the kernel has no memory for a copy (skb_ensure_writable).
// TestPacketsThatAreCut holds that no length of a packet raises 19 or 20; 21 writes the Ethernet
// header, which every frame has.
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
	{7, "vlan_depth", "The packet has more VLAN tags than the two that are read, or one where " +
		"none can be."},
	{8, "ipv4_truncated", "The packet ends inside its IPv4 header."},
	{9, "ipv6_truncated", "The packet ends inside its IPv6 header."},
	{10, "ip_version", "The IP header has another version than the frame says."},
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
		"A pod's TCP packet out of the cluster was of a connection whose beginning " +
			"conntrack has not seen."},
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
		"A tunnel datagram came from an address that no known node has."},
	{32, "to_loopback", "A packet from a pod, or out of a tunnel, was for a loopback address of " +
		"the node."},
}

// PolicyReasons are why a packet was dropped where NetworkPolicy is enforced, in nftables. They
// have no number: no program counts them.
var PolicyReasons = []Reason{
	{0, "policy_pending", "A pod of the packet is not known yet, and mute until it is."},
	{0, "policy_ingress", "No policy of the destination allows the packet."},
	{0, "policy_egress", "No policy of the source allows the packet."},
	{0, "policy_midstream", "A TCP segment belongs to no known connection, and a pod of the packet " +
		"is isolated."},
	{0, "policy_admin", "A ClusterNetworkPolicy of the Admin tier denies the packet."},
	{0, "policy_baseline", "A ClusterNetworkPolicy of the Baseline tier denies the packet."},
	{0, "policy_unknown_peer", "The packet is of an address of a pod that the node does not know, " +
		"where a policy may deny some pods."},
	{0, "policy_unstamped", "The nftables table of policies did not judge a pod's packet: somebody " +
		"deleted or flushed it."},
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
	b.WriteString("`kubeveil_guard` and `kubeveil_pods`. `veilctl guard` shows both. What to " +
		"alert on:\n")
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
	return b.String()
}
