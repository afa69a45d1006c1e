/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What programs at links do with the packets of services: change the destination of what comes in
 * and the source of what goes out, and say by a mark that they did. A packet is never sent anywhere
 * else than routes say (route.h), and what is not of a service is left as it is. Fragments, packets
 * with IPv6 extension headers and those with VLAN tags are; flow.h has the table.
 */
#pragma once

#include "kernel.h"
#include "balance.h"
#include "callers.h"
#include "drop.h"
#include "nodes.h"
#include "own.h"
#include "place.h"
#include "quote.h"
#include "ranges.h"
#include "rewrite.h"
#include "route.h"
#include "settings.h"
#include "state.h"
#include "turn.h"

struct tcp_header {
	struct ports ports;
	__be32 seq;
	__be32 ack;
	__u8 off;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

struct udp_header {
	struct ports ports;
	__be16 len;
	__be16 check;
};

#define ICMP_CHECK 2

/* Of a VLAN tag: the VLAN. That of 0 only has a priority (IEEE 802.1Q). */
#define VLAN_VID 0x0fff

/* linux/if_packet.h: to this host, by its address on the link. */
#define PACKET_HOST 0

/*
 * Reads a packet of IPv6. Tables have IPv4 addresses as IPv6 ones that are mapped, so who sends
 * those over IPv6 would be taken for somebody else.
 */
static __always_inline int steer_parse_ipv6(struct __sk_buff *skb, __u32 network, struct packet *p)
{
	int parsed = parse_ipv6(skb, BASE_DATA, network, p);

	if (parsed == PACKET_IP && (is_mapped(&p->src) || is_mapped(&p->dst)))
		return PACKET_NOT_IP;
	return parsed;
}

/* Reads a packet; network is where IP begins. */
static __always_inline int steer_parse(struct __sk_buff *skb, __u32 network, struct packet *p)
{
	__be16 proto = skb->protocol;

	if (network == ETH_HLEN) {
		if (skb->vlan_present && skb->vlan_tci & VLAN_VID)
			return PACKET_NOT_IP; /* the VLAN's own link sees it without */
		if (bpf_skb_load_bytes(skb, ETH_HLEN - sizeof(proto), &proto, sizeof(proto)))
			return PACKET_NOT_IP;
	}
	if (proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(skb, BASE_DATA, network, p);
	if (proto == bpf_htons(ETH_P_IPV6))
		return steer_parse_ipv6(skb, network, p);
	return PACKET_NOT_IP;
}

/* Makes key that of the packet, if it has ports. */
static __always_inline int steer_key(struct __sk_buff *skb, struct balance *w, enum flow_hook hook)
{
	struct tcp_header h;

	if (w->p.fragment)
		return 0;
	w->tcp_flags = 0;
	switch (w->p.protocol) {
	case PROTO_TCP:
		if (bpf_skb_load_bytes(skb, w->p.payload, &h, sizeof(h)))
			return 0;
		w->tcp_flags = h.flags;
		break;
	case PROTO_UDP:
		if (bpf_skb_load_bytes(skb, w->p.payload, &h, sizeof(struct udp_header)))
			return 0;
		break;
	default:
		return 0;
	}
	w->key.src = w->p.src;
	w->key.dst = w->p.dst;
	w->key.sport = h.ports.src;
	w->key.dport = h.ports.dst;
	w->key.protocol = w->p.protocol;
	w->key.hook = hook;
	return 1;
}

static __always_inline int steer_is_error(const struct packet *p)
{
	return p->protocol == (p->family == 6 ? PROTO_ICMPV6 : PROTO_ICMP) && !p->fragment;
}

/*
 * An ICMP error goes the other way than the packet that it quotes, so what became of one end of
 * that packet is undone by the entry of packets that answer it: at the other end of what is quoted,
 * and at the end of the error that is the same address. 0 is that it is not of a flow.
 */
static __always_inline int steer_error(
	struct __sk_buff *skb, struct balance *w, __u32 network, enum flow_hook hook)
{
	enum rewrite_end outer = hook == FLOW_IN ? REWRITE_DST : REWRITE_SRC;
	enum rewrite_end inner = hook == FLOW_IN ? REWRITE_SRC : REWRITE_DST;
	__u32 at = w->p.payload + QUOTE_OFFSET, check = w->p.payload + ICMP_CHECK;
	const struct addr *was = hook == FLOW_IN ? &w->quoted.src : &w->quoted.dst;
	const struct addr *end = hook == FLOW_IN ? &w->p.dst : &w->p.src;
	struct service_flow *f;
	struct ports ports;
	__u8 type;
	int parsed;

	if (bpf_skb_load_bytes(skb, w->p.payload, &type, sizeof(type)) ||
		!is_quoting(w->p.family, type))
		return 0;
	if (w->p.family == 6)
		parsed = steer_parse_ipv6(skb, at, &w->quoted);
	else
		parsed = parse_ipv4(skb, BASE_DATA, at, &w->quoted);
	if (parsed != PACKET_IP)
		return 0;
	if (w->quoted.protocol != PROTO_TCP && w->quoted.protocol != PROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, w->quoted.payload, &ports, sizeof(ports)))
		return 0;
	w->key.src = w->quoted.dst;
	w->key.dst = w->quoted.src;
	w->key.sport = ports.dst;
	w->key.dport = ports.src;
	w->key.protocol = w->quoted.protocol;
	w->key.hook = hook;
	f = bpf_map_lookup_elem(&service_flows, &w->key);
	if (!f)
		return 0;
	w->flow = *f;
	/* What a router says about a packet of this node's comes from this node. */
	if ((same_addr(end, was) || (hook == FLOW_OUT && w->flow.flags & FLOW_SELF)) &&
		rewrite_addr(skb, w->p.family, network, outer, end, &w->flow.addr,
			w->p.family == 6 ? check : 0, BPF_F_PSEUDO_HDR))
		return -1;
	if (rewrite_addr(skb, w->p.family, at, inner, was, &w->flow.addr, check, 0))
		return -1;
	if (rewrite_port(skb, w->quoted.payload + (inner == REWRITE_SRC ? 0 : 2),
		    inner == REWRITE_SRC ? ports.src : ports.dst, w->flow.port, check, 0))
		return -1;
	return 1;
}

/* Whether the packet may be of a flow, or its ends may have had one. */
static __always_inline int steer_known(const struct balance *w)
{
	return known(&service_known, &w->key.src) || known(&service_known, &w->key.dst);
}

/* What opens a connection, or a datagram, of no flow that is known. */
static __always_inline int steer_open(struct __sk_buff *skb, struct balance *w, __u32 now, int link)
{
	int why = balance_new(skb, now, link);

	if (why == BALANCE_NO_SERVICE && steer_known(w)) {
		if (w->key.protocol == PROTO_TCP)
			flow_forget(now);
		else if (link != LINK_OUTSIDE)
			state_forget_datagrams();
	}
	if (why == BALANCE_CHOSEN && link != LINK_OUTSIDE &&
		!(caller_keep(skb->ifindex) && place_keep(now))) {
		w->ended = w->key;
		flow_end();
		return COUNT_PACKET_PORT;
	}
	return why;
}

/* The answer of a backend; f is the entry of key. What is not of the pod is none. */
static __always_inline int steer_answer(
	struct __sk_buff *skb, struct balance *w, struct service_flow *f, __u32 now, int link)
{
	int same_link = link != LINK_POD || f->link == skb->ifindex;
	__u16 says = state_says(w, 0);

	w->flow = *f;
	w->own = same_link;
	if (f->used == now && !(says & ~f->flags) && same_link && !state_accepts(w, f))
		return BALANCE_CHOSEN;
	w->own = link != LINK_POD || is_own(skb);
	if (!w->own)
		return BALANCE_NO_SERVICE;
	if (state_accepts(w, f)) {
		state_end(w);
		return BALANCE_NO_SERVICE;
	}
	state_note(f, says);
	f->used = now;
	if (!same_link)
		f->link = skb->ifindex;
	return BALANCE_CHOSEN;
}

/* Whether a packet of the client, of whose flow f is the first entry, changes nothing of it. */
static __always_inline int steer_goes_on(
	const struct balance *w, const struct service_flow *f, __u32 now)
{
	return f && f->flags & FLOW_FORWARD && f->used == now && !(state_says(w, 1) & ~f->flags) &&
	       !state_opens(w->tcp_flags);
}

/* Sees once in a second to what else there is of the flow of key, of which f is the first entry. */
static __always_inline int steer_keep(
	struct __sk_buff *skb, struct balance *w, struct service_flow *f, __u32 now, int link)
{
	__u16 flags = w->flow.flags;
	int why;

	f->used = now;
	w->apart = flags & FLOW_APART;
	why = flow_keep(now, FLOW_KNOWN, flags & FLOW_SELF);
	if (!why && link != LINK_OUTSIDE && !caller_keep(skb->ifindex))
		why = COUNT_PACKET_PORT;
	if (why) {
		bpf_map_delete_elem(&service_flows, &w->key);
		return why;
	}
	if (link != LINK_OUTSIDE)
		place_keep(now);
	/* Keeping the others changed flow. */
	becomes(w, &w->to.addr, w->to.port, flags, now);
	return BALANCE_CHOSEN;
}

/* Finds or makes the entry of key; flow is a copy. */
__noinline int steer_find(struct __sk_buff *skb, int link)
{
	struct balance *w = balance_work();
	__u32 now = flow_now();
	struct service_flow *f;
	__u16 says;

	if (!w)
		return BALANCE_NO_SERVICE;
	w->own = 0;
	f = steer_known(w) ? bpf_map_lookup_elem(&service_flows, &w->key) : 0;
	if (f && !(f->flags & FLOW_FORWARD) &&
		!(w->key.protocol == PROTO_UDP && flow_over(PROTO_UDP, f, now)))
		return steer_answer(skb, w, f, now, link);
	if (!f && w->key.protocol == PROTO_TCP && !state_opens(w->tcp_flags))
		return BALANCE_NO_SERVICE;
	/* What is not of the pod makes, changes and ends nothing. */
	if (link == LINK_POD && !in_ranges(&w->key.src))
		return BALANCE_NO_SERVICE;
	if (link == LINK_POD && !steer_goes_on(w, f, now)) {
		w->own = is_own(skb);
		if (!w->own)
			return BALANCE_NO_SERVICE;
	}
	if (f && (!(f->flags & FLOW_FORWARD) || state_outlived(w, f, now, link))) {
		if (w->key.protocol == PROTO_UDP && !flow_over(PROTO_UDP, f, now))
			service_count(COUNT_PACKET_MOVED);
		bpf_map_delete_elem(&service_flows, &w->key);
		f = 0;
	}
	if (!f)
		return steer_open(skb, w, now, link);
	w->flow = *f;
	w->to.addr = w->flow.addr;
	w->to.port = w->flow.port;
	says = state_says(w, 1);
	if (says & ~f->flags) {
		f->flags |= says;
		flow_note(says, w->flow.flags & FLOW_SELF);
	}
	return f->used == now ? BALANCE_CHOSEN : steer_keep(skb, w, f, now, link);
}

/* Whether it is of another node's tunnel: that nobody who makes services gets. */
static __always_inline int steer_is_outer(const struct balance *w, enum service_link link)
{
	return link == LINK_OUTSIDE && w->key.protocol == PROTO_UDP &&
	       w->key.dport == bpf_htons(tunnel_port) && is_node(&w->key.dst);
}

/* Sends the packet of key on, if that is not left to the kernel. */
static __always_inline int steer_on(
	struct __sk_buff *skb, __u32 network, enum service_link link, int served)
{
	if (network != ETH_HLEN || link == LINK_TUNNEL || (!served && link != LINK_POD))
		return VERDICT_NEXT;
	return route_on(skb, link, served);
}

/* What comes in by a link. */
static __always_inline int steer_in(struct __sk_buff *skb, __u32 network, enum service_link link)
{
	__u32 mark = service_mark | (link == LINK_OUTSIDE ? pod_mark : 0);
	struct balance *w = balance_work();
	int did;

	/* What a bridge only passes on is not for this host. */
	if (!w || skb->pkt_type != PACKET_HOST)
		return VERDICT_NEXT;
	if (steer_parse(skb, network, &w->p) != PACKET_IP)
		return VERDICT_NEXT;
	if (steer_is_error(&w->p)) {
		did = steer_error(skb, w, network, FLOW_IN);
		if (did > 0)
			skb->mark |= mark;
		return did < 0 ? drop(REASON_SERVICE_QUOTE_REWRITE) : VERDICT_NEXT;
	}
	if (!steer_key(skb, w, FLOW_IN) || steer_is_outer(w, link))
		return VERDICT_NEXT;
	w->ethernet = network == ETH_HLEN;
	did = steer_find(skb, link);
	if (did == BALANCE_NO_SERVICE)
		return steer_on(skb, network, link, 0);
	if (did != BALANCE_CHOSEN)
		return service_drop(did);
	if (turn_end(skb, w, network, REWRITE_DST))
		return drop(REASON_SERVICE_REWRITE);
	skb->mark |= mark;
	return steer_on(skb, network, link, 1);
}

/* What goes out by a link. What came from a pod or a tunnel is of a flow only if it is marked so.
 */
static __always_inline int steer_out(struct __sk_buff *skb, __u32 network)
{
	struct balance *w = balance_work();
	int did;

	if (!w || (skb->mark & (pod_mark | service_mark)) == pod_mark)
		return VERDICT_NEXT;
	if (steer_parse(skb, network, &w->p) != PACKET_IP)
		return VERDICT_NEXT;
	if (steer_is_error(&w->p)) {
		did = steer_error(skb, w, network, FLOW_OUT);
		return did < 0 ? drop(REASON_SERVICE_QUOTE_REWRITE) : VERDICT_NEXT;
	}
	if (!steer_key(skb, w, FLOW_OUT) || !steer_known(w))
		return VERDICT_NEXT;
	return turn_source(skb, network);
}
