/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision of the guard, for links with and without Ethernet headers. */
#pragma once

#include "kernel.h"
#include "drop.h"
#include "encap.h"
#include "links.h"
#include "neighbour.h"
#include "nodes.h"
#include "packet.h"
#include "ranges.h"
#include "settings.h"
#include "vips.h"

/* Judges p by its addresses and by what is behind its header; how is for encap_judge. */
static __always_inline int guard_packet(struct __sk_buff *skb, const struct packet *p, int how)
{
	int reason;

	if (in_ranges(&p->src))
		return drop(REASON_SRC_IN_RANGE);
	if (in_ranges(&p->dst))
		return drop(REASON_DST_IN_RANGE);
	reason = encap_judge(skb, p, how);
	return reason ? drop(reason) : VERDICT_NEXT;
}

/* parsed is what parse_* returned for p. */
static __always_inline int guard_in(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	if (parsed == PACKET_NOT_IP || parsed == PACKET_ARP)
		return VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);
	return guard_packet(skb, p, 0);
}

/*
 * Judges what leaves. A pod's packet has its mark, which another program may have overwritten:
 * then the link that it came in by tells.
 */
static __always_inline int guard_out(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	int how = ENCAP_LEAVES, lost;

	if (parsed == PACKET_NOT_IP)
		return VERDICT_NEXT;
	if (parsed == PACKET_ARP)
		return names_inside(skb, p) ? drop(REASON_NEIGHBOUR_IN_RANGE) : VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);
	lost = !(skb->mark & pod_mark) && is_from_inside(skb);
	if (lost || skb->mark & pod_mark) {
		how |= ENCAP_POD;
		if (in_ranges(&p->dst))
			return drop(lost ? REASON_POD_MARK_LOST : REASON_POD_TO_RANGE);
		if (is_node(&p->dst))
			return drop(lost ? REASON_POD_MARK_LOST : REASON_POD_TO_NODE);
		/* What is of a flow to a service was translated, or answers a client there. */
		if (!(skb->mark & service_mark) && is_vip(&p->dst))
			return drop(lost ? REASON_POD_MARK_LOST : REASON_POD_TO_VIP);
	}
	return guard_packet(skb, p, how);
}
