/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What packets say of the state of their flow, and when they are of another than the table has. */
#pragma once

#include "kernel.h"
#include "balance.h"
#include "place.h"

/* What a packet says of the state of its flow, for one that is the client's or the backend's. */
static __always_inline __u16 state_says(const struct balance *w, int is_client)
{
	__u16 says = is_client ? 0 : FLOW_ANSWERED;

	if (w->key.protocol != PROTO_TCP)
		return 0;
	if (is_client && !(w->tcp_flags & TCP_SYN))
		says |= FLOW_SPOKE;
	if (w->tcp_flags & TCP_FIN)
		says |= is_client ? FLOW_FIN : FLOW_FIN_BACK;
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

/* Takes the doubt from an entry. */
static __always_inline struct service_flow *state_trust(struct balance *w, enum flow_hook hook)
{
	struct service_flow *f;

	from_backend(w, hook);
	f = bpf_map_lookup_elem(&service_flows, &w->other);
	if (f && f->flags & FLOW_DOUBT)
		f->flags &= ~FLOW_DOUBT;
	return f;
}

/* Whether the backend of a flow of datagrams answers its client, who may be silent meanwhile. */
static __always_inline int state_answered(struct balance *w, __u32 now)
{
	struct service_flow *back;

	from_backend(w, FLOW_OUT);
	back = bpf_map_lookup_elem(&service_flows, &w->other);
	return back && back->port == w->key.dport && same_addr(&back->addr, &w->key.dst) &&
	       !flow_over(PROTO_UDP, back, now);
}

/* Whether the client's packets are of another flow than the entry f was made for. */
static __always_inline int state_outlived(
	struct balance *w, const struct service_flow *f, __u32 now, int link)
{
	struct service_flow *back;
	__u16 flags = f->flags;

	if (w->key.protocol == PROTO_TCP && !state_opens(w->tcp_flags))
		return 0;
	w->to.addr = f->addr;
	w->to.port = f->port;
	if (w->key.protocol == PROTO_UDP) {
		if (flow_over(PROTO_UDP, f, now) && !state_answered(w, now))
			return 1;
		balance_ask(w, link);
		return !service_has(&w->at, &w->to.addr, w->to.port);
	}
	/* Whoever asks for the service now means it. */
	state_trust(w, FLOW_IN);
	back = state_trust(w, FLOW_OUT);
	if (back)
		flags |= back->flags & (FLOW_RST | FLOW_ANSWERED);
	return flags & FLOW_STATE || flow_ended(PROTO_TCP, flags, f->used, now);
}

/*
 * Whether a backend's packet, in whose entry f is a doubt, accepts another connection of the two
 * ends: then it does not have that of the flow any more. While it has, it answers what opens
 * another by an acknowledgement alone (RFC 9293 section 3.10.7.4, RFC 5961 section 4).
 */
static __always_inline int state_accepts(const struct balance *w, const struct service_flow *f)
{
	const __u8 both = TCP_SYN | TCP_ACK;

	return f->flags & FLOW_DOUBT && (w->tcp_flags & both) == both;
}

/* Ends the flow of whose answers f is the entry that other is the key of, as they leave. */
static __always_inline void state_end_answered(struct balance *w, const struct service_flow *f)
{
	ended_by(w, f);
	flow_end();
}

/* Ends the flow of which key, a backend's packet, was an answer. */
static __always_inline void state_end(struct balance *w)
{
	struct service_flow *f;

	w->other = w->key;
	w->other.hook = FLOW_OUT;
	f = bpf_map_lookup_elem(&service_flows, &w->other);
	if (f)
		state_end_answered(w, f);
	/* What is left where the table had forgotten the first. */
	w->other = w->key;
	w->other.hook = FLOW_OUT;
	bpf_map_delete_elem(&service_flows, &w->other);
	w->other.hook = FLOW_IN;
	bpf_map_delete_elem(&service_flows, &w->other);
}

/*
 * A client inside sends a datagram, that of key, without a service. Had it a flow to the same end
 * by one, the answers of both would look alike; the last that was sent counts, so that one is
 * ended.
 */
__noinline int state_forget_datagrams(void)
{
	struct balance *w = balance_work();
	struct service_flow *f;

	if (!w)
		return 0;
	answers_of(w, &w->key, &w->key.dst, w->key.dport, FLOW_OUT);
	f = bpf_map_lookup_elem(&service_flows, &w->other);
	if (!f || f->flags & (FLOW_FORWARD | FLOW_SELF))
		return 0;
	state_end_answered(w, f);
	/* What is left where the table had forgotten the first. */
	answers_of(w, &w->key, &w->key.dst, w->key.dport, FLOW_OUT);
	bpf_map_delete_elem(&service_flows, &w->other);
	w->other.hook = FLOW_IN;
	f = bpf_map_lookup_elem(&service_flows, &w->other);
	if (f && !(f->flags & FLOW_FORWARD))
		bpf_map_delete_elem(&service_flows, &w->other);
	return 0;
}
