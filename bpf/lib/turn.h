/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Giving one end of a packet the address that its flow says. */
#pragma once

#include "kernel.h"
#include "balance.h"
#include "drop.h"
#include "rewrite.h"
#include "state.h"

/* Where the checksum is in the header. */
#define TCP_CHECK 16
#define UDP_CHECK 6

/* Gives one end of the packet of key the address of flow; network is where IP begins. */
static __always_inline int turn_end(
	struct __sk_buff *skb, const struct balance *w, __u32 network, enum rewrite_end end)
{
	int udp = w->key.protocol == PROTO_UDP;
	__u64 flags = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 check = w->p.payload + (udp ? UDP_CHECK : TCP_CHECK);
	const struct addr *from = end == REWRITE_SRC ? &w->key.src : &w->key.dst;
	__be16 port = end == REWRITE_SRC ? w->key.sport : w->key.dport;

	if (!same_addr(from, &w->flow.addr) &&
		rewrite_addr(skb, w->p.family, network, end, from, &w->flow.addr, check,
			flags | BPF_F_PSEUDO_HDR))
		return -1;
	return rewrite_port(
		skb, w->p.payload + (end == REWRITE_SRC ? 0 : 2), port, w->flow.port, check, flags);
}

/* Gives the source of the packet of key, which leaves, what its flow says, if it is of one. */
__noinline int turn_source(struct __sk_buff *skb, __u32 network)
{
	struct balance *w = balance_work();
	struct service_flow *f;
	__u32 now = flow_now();

	if (!w)
		return VERDICT_NEXT;
	f = bpf_map_lookup_elem(&service_flows, &w->key);
	if (!f)
		return VERDICT_NEXT;
	if (w->key.protocol == PROTO_UDP && flow_over(PROTO_UDP, f, now))
		return VERDICT_NEXT; /* what is left of a flow; these datagrams are of none */
	if (state_accepts(w, f)) {
		state_end(w);
		return VERDICT_NEXT;
	}
	w->flow = *f;
	/* What leaves from an address of this node's own is the client's. */
	state_note(f, state_says(w, f->flags & FLOW_SELF));
	if (f->used != now)
		f->used = now;
	if (turn_end(skb, w, network, REWRITE_SRC))
		return drop(REASON_SERVICE_REWRITE);
	return VERDICT_NEXT;
}
