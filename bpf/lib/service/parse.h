/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parses the packets that services may rewrite. Fragments of TCP, packets with other IPv6 extension
 * headers than that of fragments, and packets of a VLAN are not among them.
 */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "service/conntrack.h"
#include "service/flow.h"
#include "service/fragment.h"
#include "service/work.h"

/* The VLAN identifier in a tag. A tag with identifier 0 only has a priority (IEEE 802.1Q). */
#define VLAN_VID 0x0fff

/*
 * Sets p from the IPv6 header at network. Returns what parse_ipv6 returns. A packet with mapped
 * IPv4 addresses is PACKET_NOT_IP: in the maps they stand for an IPv4 sender.
 */
static __always_inline int service_parse_ipv6(
	struct __sk_buff *skb, __u32 network, struct packet *p)
{
	int parsed = parse_ipv6(skb, BASE_DATA, network, p);

	if (parsed == PACKET_IP && (is_mapped(&p->src) || is_mapped(&p->dst)))
		return PACKET_NOT_IP;

	return parsed;
}

/* Sets p from the packet. network is the offset of its IP header. Returns PACKET_IP or another. */
static __always_inline int service_parse(struct __sk_buff *skb, __u32 network, struct packet *p)
{
	__be16 proto = skb->protocol;

	if (network == ETH_HLEN) {
		if (skb->vlan_present && skb->vlan_tci & VLAN_VID)
			return PACKET_NOT_IP; /* the VLAN's own link sees it without the tag */
		if (bpf_skb_load_bytes(skb, ETH_HLEN - sizeof(proto), &proto, sizeof(proto)))
			return PACKET_NOT_IP;
	}

	if (proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(skb, BASE_DATA, network, p);
	if (proto == bpf_htons(ETH_P_IPV6))
		return service_parse_ipv6(skb, network, p);
	return PACKET_NOT_IP;
}

/*
 * Sets w->in.key, w->in.fragment and w->in.tcp_flags from the packet whose IP header is at network,
 * and in w->in.packet. Returns 0 if it has no ports, or if the ports of its datagram are unknown.
 */
static __always_inline int service_key(
	struct __sk_buff *skb, struct work *w, __u32 network, enum flow_hook hook)
{
	struct tcp_header h;

	w->in.fragment = FRAGMENT_NONE;
	w->in.tcp_flags = 0;
	if ((w->in.packet.fragment || w->in.packet.protocol == PROTO_FRAGMENT) &&
		!fragment_parse(skb, network))
		return 0;

	switch (w->in.packet.protocol) {
	case PROTO_TCP:
		if (bpf_skb_load_bytes(skb, w->in.packet.payload, &h, sizeof(h)))
			return 0;
		w->in.tcp_flags = h.flags;
		break;
	case PROTO_UDP:
		if (w->in.fragment == FRAGMENT_LATER) {
			if (!fragment_ports(w, hook, flow_now(), &h.ports))
				return 0;
		} else if (bpf_skb_load_bytes(
				   skb, w->in.packet.payload, &h, sizeof(struct udp_header)))
			return 0;
		break;
	default:
		return 0;
	}

	w->in.key.src = w->in.packet.src;
	w->in.key.dst = w->in.packet.dst;
	w->in.key.sport = h.ports.src;
	w->in.key.dport = h.ports.dst;
	w->in.key.protocol = w->in.packet.protocol;
	w->in.key.hook = hook;
	return 1;
}

/* Reports whether the packet is an ICMP message. */
static __always_inline int is_icmp(const struct packet *p)
{
	return p->protocol == (p->family == 6 ? PROTO_ICMPV6 : PROTO_ICMP) && !p->fragment;
}
