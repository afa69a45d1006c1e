/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Judges the headers behind the IP header of a packet: IP packets inside it, the addresses that a
 * routing header lists, and the addresses in an ICMP message. Routes with an encapsulation (seg6,
 * rpl, ioam6), IPsec's tunnel mode and raw sockets put addresses of the cluster there. No netfilter
 * hook sees such a packet as it leaves.
 *
 * Each step reads one header. The state is in a map and encap_step is a global function. The
 * verifier checks a global function once, by itself, so the number of steps costs it nothing.
 *
 *	outer IP ─► extension headers ─► IP (depth 1) ─► extension headers ─► IP (depth 2) ─► end
 *	                   └ routing header: each address is judged as a destination
 *
 * A packet with an unreadable header, or with more headers than are read, is dropped.
 */
#pragma once

#include "kernel.h"
#include "guard/neighbour.h"
#include "guard/nodes.h"
#include "guard/ranges.h"
#include "guard/vips.h"
#include "packet/addr.h"
#include "packet/icmp_inner.h"
#include "packet/l4.h"
#include "packet/packet.h"
#include "packet/settings.h"

/* How many IP headers are read behind the first. */
#define ENCAP_DEPTH 2
/* How many steps there are. A routing header takes one more for each ENCAP_LISTED addresses. */
#define ENCAP_STEPS  32
#define ENCAP_LISTED 4
/* How many bytes of a packet are made linear on a link without Ethernet headers. */
#define ENCAP_PULL 4096

/* Protocols whose header has another one behind it (IANA, RFC 7045). */
#define PROTO_HOPOPTS  0
#define PROTO_IPV4     4
#define PROTO_IPV6     41
#define PROTO_ROUTING  43
#define PROTO_AH       51
#define PROTO_DSTOPTS  60
#define PROTO_MOBILITY 135
#define PROTO_HIP      139
#define PROTO_SHIM6    140
#define PROTO_ETHERNET 143

/* Types of routing headers that list addresses. */
#define ROUTING_SOURCE	0 /* RFC 2460 section 4.4 */
#define ROUTING_MOBILE	2 /* RFC 6275 section 6.4 */
#define ROUTING_RPL	3 /* RFC 6554 section 3 */
#define ROUTING_SEGMENT 4 /* RFC 8754 section 2 */

/* Rules by which encap_step judges. 0 is for a packet that comes in. */
#define ENCAP_LEAVES 1
#define ENCAP_POD    2 /* the packet leaves and is a pod's */

/* What encap_step returns, besides a reason to drop. */
#define ENCAP_END  0
#define ENCAP_MORE (-1)

struct encap {
	/* The last IP header that was read. The cursor is its protocol and payload: the type and
	 * the place of the next header. */
	struct packet p;
	__u32 depth;	   /* IP headers read behind the first */
	__u32 in_error;	   /* whether the cursor is in the inner packet of an ICMP error */
	__u32 list;	   /* offset of the next address of a routing header */
	__u32 list_left;   /* addresses of the routing header that are not judged yet */
	__u32 common;	   /* bytes that each address has in common with the destination */
	__u32 common_last; /* the same for the last address */
	/* A listed address: the destination's first bytes, then the bytes of the list. */
	union {
		struct addr addr;
		__u8 byte[32];
	} hop;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct encap);
} guard_work SEC(".maps");

/* The beginning of an extension header. */
struct extension {
	__u8 next;
	__u8 len; /* in units of eight bytes, without the first eight */
	union {
		__be16 frag;
		struct {
			__u8 type;
			__u8 segments_left;
		} routing;
	};
	union {
		__u8 cmpr;	 /* RPL: common bytes of all but the last, and of the last */
		__u8 last_entry; /* segments: index of the last */
	};
	__u8 pad; /* RPL: number of bytes behind the last address, in the high bits */
	__u8 rest[2];
};

/* Returns the state of the packet on this CPU. */
static __always_inline struct encap *encap_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&guard_work, &zero);
}

/* Reports whether the header at the cursor of p is one that is read under these rules. */
static __always_inline int encap_follows(const struct packet *p, int rules)
{
	switch (p->protocol) {
	case PROTO_IPV4:
	case PROTO_IPV6:
	case PROTO_AH:
	case PROTO_ETHERNET:
		return 1;
	case PROTO_ICMP:
		return p->family == 4 && rules;
	case PROTO_ICMPV6:
		return p->family == 6 && rules;
	case PROTO_HOPOPTS:
	case PROTO_ROUTING:
	case PROTO_FRAGMENT:
	case PROTO_DSTOPTS:
	case PROTO_MOBILITY:
	case PROTO_HIP:
	case PROTO_SHIM6:
		return p->family == 6;
	}
	return 0;
}

/*
 * Returns the reason to drop a packet whose inner destination is a, or 0. in_range is the reason if
 * a is in a cluster or service range.
 */
static __always_inline int encap_destination(
	struct __sk_buff *skb, const struct addr *a, int rules, int in_range)
{
	if (in_ranges(a))
		return in_range;
	if (!(rules & ENCAP_POD))
		return 0;
	if (is_node(a))
		return REASON_INNER_TO_NODE;
	if (!(skb->mark & service_mark) && is_vip(a))
		return REASON_INNER_TO_VIP;
	return 0;
}

/* Judges the IP header of a family at the cursor, and moves the cursor behind it. */
static __always_inline int encap_ip(struct __sk_buff *skb, struct encap *e, int rules, int family)
{
	int reason;

	if (e->depth >= ENCAP_DEPTH)
		return REASON_INNER_DEPTH;
	e->depth++;

	if (family == 6)
		reason = parse_ipv6(skb, e->p.base, e->p.payload, &e->p);
	else
		reason = parse_ipv4(skb, e->p.base, e->p.payload, &e->p);
	if (reason != PACKET_IP)
		return REASON_INNER_TRUNCATED;

	if (in_ranges(&e->p.src))
		return REASON_INNER_SRC_IN_RANGE;

	reason = encap_destination(skb, &e->p.dst, rules, REASON_INNER_DST_IN_RANGE);
	return reason ? reason : ENCAP_MORE;
}

/* Moves the cursor behind the Ethernet header and its VLAN tags. */
static __always_inline int encap_ethernet(struct __sk_buff *skb, struct encap *e)
{
	__u32 off = ETH_HLEN - sizeof(__be16), tags;
	__be16 type;

	if (packet_load(skb, e->p.base, e->p.payload + off, &type, sizeof(type)))
		return REASON_INNER_TRUNCATED;

#pragma unroll
	for (tags = 0; tags < VLAN_TAGS_MAX && is_vlan(type); tags++) {
		off += 4;
		if (packet_load(skb, e->p.base, e->p.payload + off, &type, sizeof(type)))
			return REASON_INNER_TRUNCATED;
	}
	if (is_vlan(type))
		return REASON_INNER_DEPTH;
	if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6))
		return ENCAP_END;

	e->p.payload += off + sizeof(type);
	e->p.protocol = type == bpf_htons(ETH_P_IP) ? PROTO_IPV4 : PROTO_IPV6;

	return ENCAP_MORE;
}

/* Judges the ICMP message at the cursor, and moves the cursor to the inner packet of an error. */
static __always_inline int encap_icmp(struct __sk_buff *skb, struct encap *e)
{
	__u8 type;

	if (packet_load(skb, e->p.base, e->p.payload, &type, sizeof(type)))
		return REASON_QUOTED_IN_ERROR;

	if (icmp_has_inner(e->p.family, type)) {
		e->in_error = 1;
		e->p.payload += ICMP_INNER_OFFSET;
		e->p.protocol = e->p.family == 6 ? PROTO_IPV6 : PROTO_IPV4;
		return ENCAP_MORE;
	}

	if (e->p.family == 6 && nd_has_target(type) && nd_names_range(skb, e->p.base, e->p.payload))
		return REASON_NEIGHBOUR_IN_RANGE;

	return ENCAP_END;
}

/* Reports whether the ports at the cursor belong to a path MTU probe, or are unreadable. */
static __always_inline int encap_is_probe(struct __sk_buff *skb, const struct encap *e)
{
	struct ports ports;

	if (packet_load(skb, e->p.base, e->p.payload, &ports, sizeof(ports)))
		return 1;
	return ports.dst == bpf_htons(probe_port) || ports.src == bpf_htons(probe_port);
}

/* Sets e->list and what belongs to it from the routing header h at the cursor. */
static __always_inline void encap_routing(struct encap *e, const struct extension *h)
{
	__u32 room = h->len * 8, size;

	e->list = e->p.payload + sizeof(*h);
	e->list_left = 0;
	e->common = 0;
	e->common_last = 0;

	switch (h->routing.type) {
	case ROUTING_SOURCE:
	case ROUTING_MOBILE:
		e->list_left = room / 16;
		break;
	case ROUTING_SEGMENT:
		e->list_left = room / 16;
		if (e->list_left > h->last_entry + 1U)
			e->list_left = h->last_entry + 1U; /* what follows are TLVs */
		break;
	case ROUTING_RPL:
		e->common = h->cmpr >> 4;
		e->common_last = h->cmpr & 0xf;
		room -= h->pad >> 4;
		size = 16 - e->common_last;
		if (room < size || room > 255 * 8)
			break;
		e->list_left = 1 + (room - size) / (16 - e->common);
		break;
	}
}

/* Judges the next ENCAP_LISTED addresses of the routing header. */
static __always_inline int encap_listed(struct __sk_buff *skb, struct encap *e, int rules)
{
	int reason;

#pragma unroll
	for (int i = 0; i < ENCAP_LISTED; i++) {
		__u32 common = e->list_left == 1 ? e->common_last : e->common;

		if (!e->list_left)
			break;

		common &= 0xf;
		e->hop.addr = e->p.dst;
		if (packet_load(skb, e->p.base, e->list, e->hop.byte + common, 16 - common))
			return REASON_INNER_TRUNCATED;
		reason = encap_destination(skb, &e->hop.addr, rules, REASON_ROUTED_BY_RANGE);
		if (reason)
			return reason;

		e->list += 16 - common;
		e->list_left--;
	}
	return ENCAP_MORE;
}

/* Moves the cursor behind the extension header at it. */
static __always_inline int encap_extension(struct __sk_buff *skb, struct encap *e)
{
	struct extension h;
	__u32 size;

	if (packet_load(skb, e->p.base, e->p.payload, &h, sizeof(h)))
		return REASON_INNER_TRUNCATED;

	size = (h.len + 1) * 8;
	switch (e->p.protocol) {
	case PROTO_ROUTING:
		encap_routing(e, &h);
		break;
	case PROTO_FRAGMENT:
		if (h.frag & bpf_htons(0xfff8))
			return ENCAP_END; /* only the first fragment has headers */
		size = 8;
		break;
	case PROTO_AH:
		size = (h.len + 2) * 4;
		break;
	}

	e->p.protocol = h.next;
	e->p.payload += size;

	return ENCAP_MORE;
}

/* Judges the header at the cursor. Returns ENCAP_END, ENCAP_MORE or a reason to drop. */
static __always_inline int encap_next(struct __sk_buff *skb, struct encap *e, int rules)
{
	if (e->list_left)
		return encap_listed(skb, e, rules);
	if (e->in_error && e->p.protocol == PROTO_UDP)
		return encap_is_probe(skb, e) ? REASON_QUOTED_IN_ERROR : ENCAP_END;
	if (!encap_follows(&e->p, rules))
		return ENCAP_END;
	switch (e->p.protocol) {
	case PROTO_IPV4:
		return encap_ip(skb, e, rules, 4);
	case PROTO_IPV6:
		return encap_ip(skb, e, rules, 6);
	case PROTO_ETHERNET:
		return encap_ethernet(skb, e);
	case PROTO_ICMP:
	case PROTO_ICMPV6:
		return encap_icmp(skb, e);
	}
	return encap_extension(skb, e);
}

/*
 * Judges one header of the packet whose state is in guard_work. Returns what encap_next returns,
 * with one reason for all headers of an inner packet.
 */
__noinline int encap_step(struct __sk_buff *skb, int rules)
{
	struct encap *e = encap_work();
	int step;

	if (!e)
		return REASON_INNER_TRUNCATED;

	if (e->in_error)
		rules &= ~ENCAP_POD; /* a pod may send an error about a packet from a node */

	step = encap_next(skb, e, rules);
	return e->in_error && step > 0 ? REASON_QUOTED_IN_ERROR : step;
}

/* Returns the reason to drop a packet for the headers behind the IP header of p, or 0. */
static __always_inline int encap_judge(struct __sk_buff *skb, const struct packet *p, int rules)
{
	struct encap *e;
	int step = ENCAP_MORE;

	if (!encap_follows(p, rules))
		return 0;
	e = encap_work();
	if (!e)
		return REASON_INNER_TRUNCATED;

	/* Reads from the network header see only the linear part. */
	if (p->base == BASE_NETWORK)
		bpf_skb_pull_data(skb, skb->len < ENCAP_PULL ? skb->len : ENCAP_PULL);

	e->p = *p;
	e->depth = 0;
	e->in_error = 0;
	e->list_left = 0;

#pragma unroll
	for (int i = 0; i < ENCAP_STEPS; i++) {
		step = encap_step(skb, rules);
		if (step != ENCAP_MORE)
			break;
	}

	return step == ENCAP_MORE ? REASON_INNER_DEPTH : step;
}
