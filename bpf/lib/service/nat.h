/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT: rewrites the source or the destination of a packet according to its flow. */
#pragma once

#include "kernel.h"
#include "packet/addr.h"
#include "packet/drop.h"
#include "packet/l4.h"
#include "packet/rewrite.h"
#include "service/conntrack.h"
#include "service/flow.h"
#include "service/flow_end.h"
#include "service/fragment.h"
#include "service/work.h"

/*
 * Rewrites one end of the packet w->in to the address and port of w->out.entry. network is the
 * offset of the IP header. Returns 0, or -1 if the kernel has no memory for it.
 */
static __always_inline int nat_rewrite(
	struct __sk_buff *skb, const struct work *w, __u32 network, enum rewrite_end end)
{
	int udp = w->in.key.protocol == PROTO_UDP;
	__u64 flags = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 check = w->in.packet.payload + (udp ? UDP_CHECK : TCP_CHECK);
	const struct addr *from = end == REWRITE_SRC ? &w->in.key.src : &w->in.key.dst;
	__be16 port = end == REWRITE_SRC ? w->in.key.sport : w->in.key.dport;

	if (w->in.fragment == FRAGMENT_LATER) /* has neither ports nor a checksum of them */
		return rewrite_addr(skb, w->in.packet.family, network, end, from,
			&w->out.entry.addr, 0, BPF_F_PSEUDO_HDR);

	if (!same_addr(from, &w->out.entry.addr) &&
		rewrite_addr(skb, w->in.packet.family, network, end, from, &w->out.entry.addr,
			check, flags | BPF_F_PSEUDO_HDR))
		return -1;

	return rewrite_port(skb, w->in.packet.payload + (end == REWRITE_SRC ? 0 : 2), port,
		w->out.entry.port, check, flags);
}

/*
 * Rewrites the source of the packet w->in, which leaves, if the flow table has its key. Returns the
 * verdict.
 */
__noinline int nat_source(struct __sk_buff *skb, __u32 network)
{
	struct work *w = work_get();
	struct flow *f;
	__u32 now = flow_now();

	if (!w)
		return VERDICT_NEXT;

	f = flow_read(&w->in.key, &w->out.entry);
	if (!f)
		return VERDICT_NEXT;
	if (w->in.key.protocol == PROTO_UDP && flow_expired(PROTO_UDP, &w->out.entry, now))
		return VERDICT_NEXT; /* the flow is over; this packet is of none */
	if (accepts_other(w, &w->out.entry)) {
		flow_end_of_backend(w);
		return VERDICT_NEXT;
	}

	/* A packet that gets this node's address as its source comes from the client. */
	flow_add_flags(&w->in.key, f, packet_flags(w, w->out.entry.flags & FLOW_SNAT));
	if (w->out.entry.used != now)
		f->used = now;

	if (w->in.fragment == FRAGMENT_FIRST)
		fragment_remember(FLOW_OUT, now);
	if (nat_rewrite(skb, w, network, REWRITE_SRC))
		return drop(skb, REASON_SERVICE_REWRITE, network_base(network));
	return VERDICT_NEXT;
}
