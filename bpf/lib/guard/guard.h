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
 * Returns the verdict on the packet p by its addresses and by what follows its IP header. rules has
 * the meaning of the parameter of encap_judge.
 */
static __always_inline int guard_packet(struct __sk_buff *skb, const struct packet *p, int rules)
{
	int reason;

	if (in_ranges(&p->src))
		return drop(REASON_SRC_IN_RANGE);
	if (in_ranges(&p->dst))
		return drop(REASON_DST_IN_RANGE);

	reason = encap_judge(skb, p, rules);
	return reason ? drop(reason) : VERDICT_NEXT;
}

/* Returns the verdict on a packet that comes in. parsed is the return value of parse_* for p. */
static __always_inline int guard_in(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	if (parsed == PACKET_NOT_IP || parsed == PACKET_ARP)
		return VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);

	return guard_packet(skb, p, 0);
}

/*
 * Returns the verdict on a packet that leaves. parsed is the return value of parse_* for p. A pod's
 * packet has pod_mark. If another program overwrote the mark, the link by which the packet came in
 * identifies the pod.
 */
static __always_inline int guard_out(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	int rules = ENCAP_LEAVES, mark_lost;

	if (parsed == PACKET_NOT_IP)
		return VERDICT_NEXT;
	if (parsed == PACKET_ARP)
		return arp_names_range(skb, p) ? drop(REASON_NEIGHBOUR_IN_RANGE) : VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);

	mark_lost = !(skb->mark & pod_mark) && came_from_inside(skb);
	if (mark_lost || skb->mark & pod_mark) {
		rules |= ENCAP_POD;
		if (in_ranges(&p->dst))
			return drop(mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_RANGE);
		if (is_node(&p->dst))
			return drop(mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_NODE);

		/* With service_mark the packet was translated, or it is a reply to a client. */
		if (!(skb->mark & service_mark) && is_vip(&p->dst))
			return drop(mark_lost ? REASON_POD_MARK_LOST : REASON_POD_TO_VIP);
	}

	return guard_packet(skb, p, rules);
}
