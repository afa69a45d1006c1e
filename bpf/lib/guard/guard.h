/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision of the guard, for links with and without Ethernet headers. */
#pragma once

#include "kernel.h"
#include "guard/encap.h"
#include "guard/links.h"
#include "guard/neighbour.h"
#include "guard/nodes.h"
#include "guard/ranges.h"
#include "guard/vips.h"
#include "packet/drop.h"
#include "packet/packet.h"
#include "packet/settings.h"

/*
 * Returns the reason to drop the packet p by its addresses and by what follows its IP header, or 0.
 * rules has the meaning of the parameter of encap_judge.
 */
static __always_inline int guard_packet(struct __sk_buff *skb, const struct packet *p, int rules)
{
	if (in_ranges(&p->src))
		return REASON_SRC_IN_RANGE;
	if (in_ranges(&p->dst))
		return REASON_DST_IN_RANGE;

	return encap_judge(skb, p, rules);
}

/* Returns the reason to drop a packet that comes in, or 0. parsed is the return value of parse_*
 * for p. */
static __always_inline int judge_in(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	if (parsed == PACKET_NOT_IP || parsed == PACKET_ARP)
		return 0;
	if (parsed != PACKET_IP)
		return parsed;

	return guard_packet(skb, p, 0);
}

/*
 * Returns the reason to drop a packet that leaves, or 0. parsed is the return value of parse_* for
 * p. A pod's packet has pod_mark. If another program overwrote the mark, the link by which the
 * packet came in identifies the pod.
 */
static __always_inline int judge_out(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	int rules = ENCAP_LEAVES, mark_lost;

	if (parsed == PACKET_NOT_IP)
		return 0;
	if (parsed == PACKET_ARP)
		return arp_names_range(skb, p) ? REASON_NEIGHBOUR_IN_RANGE : 0;
	if (parsed != PACKET_IP)
		return parsed;

	mark_lost = !(skb->mark & pod_mark) && came_from_inside(skb);
	if (mark_lost || skb->mark & pod_mark) {
		rules |= ENCAP_POD;
		if (in_ranges(&p->dst))
			return mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_RANGE;
		if (is_node(&p->dst))
			return mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_NODE;

		/* With service_mark the packet was translated, or it is a reply to a client. */
		if (!(skb->mark & service_mark) && is_vip(&p->dst))
			return mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_VIP;
	}

	return guard_packet(skb, p, rules);
}

/* Returns the verdict on a packet that comes in by a link. */
static __always_inline int guard_in(struct __sk_buff *skb, enum packet_base base)
{
	struct packet p = {};
	int reason =
		judge_in(skb, base == BASE_DATA ? parse_ethernet(skb, &p) : parse_l3(skb, &p), &p);

	return reason ? drop(skb, reason, base) : VERDICT_NEXT;
}

/* Returns the verdict on a packet that leaves by a link. */
static __always_inline int guard_out(struct __sk_buff *skb, enum packet_base base)
{
	struct packet p = {};
	int reason =
		judge_out(skb, base == BASE_DATA ? parse_ethernet(skb, &p) : parse_l3(skb, &p), &p);

	return reason ? drop(skb, reason, base) : VERDICT_NEXT;
}
