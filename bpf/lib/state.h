/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What packets say of the state of their flow, and when they are of another than the table has. */
#pragma once

#include "kernel.h"
#include "balance.h"

/* What a packet says of the state of its flow, for one that is the client's or the backend's. */
static __always_inline __u16 state_says(const struct balance *w, int is_client)
{
	__u16 says = is_client ? 0 : FLOW_ANSWERED;

	if (w->key.protocol != PROTO_TCP)
		return 0;
	if (is_client && !(w->tcp_flags & TCP_SYN))
		says |= FLOW_SPOKE;
	if (w->tcp_flags & TCP_FIN)
		says |= FLOW_FIN;
	if (w->tcp_flags & TCP_RST)
		says |= FLOW_RST;
	return says;
}

static __always_inline void state_note(struct service_flow *f, __u16 says)
{
	if (says & ~f->flags)
		f->flags |= says;
}

static __always_inline int state_opens(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) == TCP_SYN;
}

/* Whether the client's packets are of another flow than the entry f was made for. */
static __always_inline int state_outlived(
	struct balance *w, const struct service_flow *f, __u32 now)
{
	struct service_flow *back;
	__u16 flags = f->flags;

	if (w->key.protocol == PROTO_UDP)
		return flow_over(PROTO_UDP, f, now) || !service_member(f->group, &f->addr, f->port);
	if (!state_opens(w->tcp_flags))
		return 0;
	w->to.addr = f->addr;
	w->to.port = f->port;
	from_backend(w, FLOW_OUT);
	back = bpf_map_lookup_elem(&service_flows, &w->other);
	if (back)
		flags |= back->flags & (FLOW_RST | FLOW_ANSWERED);
	return flags & FLOW_STATE || flow_ended(PROTO_TCP, flags, f->used, now);
}
