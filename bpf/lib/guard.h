/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision of the guard, for links with and without Ethernet headers. */
#pragma once

#include "kernel.h"
#include "drop.h"
#include "nodes.h"
#include "packet.h"
#include "quote.h"
#include "ranges.h"
#include "settings.h"
#include "vips.h"

static __always_inline int guard_addrs(const struct packet *p)
{
	if (in_ranges(&p->src))
		return drop(REASON_SRC_IN_RANGE);
	if (in_ranges(&p->dst))
		return drop(REASON_DST_IN_RANGE);
	return VERDICT_NEXT;
}

/* parsed is what parse_* returned for p. */
static __always_inline int guard_in(int parsed, const struct packet *p)
{
	if (parsed == PACKET_NOT_IP)
		return VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);
	return guard_addrs(p);
}

static __always_inline int guard_out(struct __sk_buff *skb, int parsed, const struct packet *p)
{
	int verdict;

	if (parsed == PACKET_NOT_IP)
		return VERDICT_NEXT;
	if (parsed != PACKET_IP)
		return drop(parsed);
	if (skb->mark & pod_mark) {
		if (in_ranges(&p->dst))
			return drop(REASON_POD_TO_RANGE);
		if (is_node(&p->dst))
			return drop(REASON_POD_TO_NODE);
		/* What is of a flow to a service was translated, or answers a client there. */
		if (!(skb->mark & service_mark) && is_vip(&p->dst))
			return drop(REASON_POD_TO_VIP);
	}
	verdict = guard_addrs(p);
	if (verdict == VERDICT_NEXT && quotes_inner(skb, p))
		return drop(REASON_QUOTED_IN_ERROR);
	return verdict;
}
