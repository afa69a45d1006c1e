/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which backend the flow of a packet gets, and when it gets another. */
#pragma once

#include "kernel.h"
#include "guard/nodes.h"
#include "packet/addr.h"
#include "packet/l4.h"
#include "service/affinity.h"
#include "service/choose.h"
#include "service/conntrack.h"
#include "service/count.h"
#include "service/flow.h"
#include "service/flow_make.h"
#include "service/link.h"
#include "service/node_addr.h"
#include "service/refuse.h"
#include "service/route.h"
#include "service/source_range.h"
#include "service/work.h"

/* How many backends are tried. The first BALANCE_FREE tries take no port of a closed flow. */
#define BALANCE_TRIES 4
#define BALANCE_FREE  2

/* What balance_* return, besides the counter of a drop. */
#define BALANCE_DONE	   0
#define BALANCE_NO_SERVICE (-1)

/*
 * Returns the scope of the frontend of w->in.key. A packet of another node's pod to an address of a
 * node is for a node port, so the external frontend holds for it.
 */
static __always_inline __u8 balance_scope(const struct work *w, int link)
{
	if (link == LINK_UNDERLAY || (link == LINK_TUNNEL && is_node(&w->in.key.dst)))
		return SCOPE_EXTERNAL;

	return SCOPE_INTERNAL;
}

/* Sets w->scratch.frontend_key to the frontend of w->in.key. */
static __always_inline void frontend_key_set(struct work *w, int link)
{
	w->scratch.frontend_key.addr = w->in.key.dst;
	w->scratch.frontend_key.port = w->in.key.dport;
	w->scratch.frontend_key.protocol = w->in.key.protocol;
	w->scratch.frontend_key.scope = balance_scope(w, link);
}

/* Reports whether w->scratch.frontend admits the client. Source ranges hold for external clients.
 */
static __always_inline int balance_admits(const struct work *w, int link)
{
	return link != LINK_UNDERLAY ||
	       source_admitted(w->scratch.frontend.sources, &w->in.key.src);
}

/*
 * Sets w->out.backend to the discard port of this node, where the kernel refuses. Returns 0 if this
 * node has no address of the family.
 */
static __always_inline int backend_set_refusing(struct work *w)
{
	struct addr *node = node_addr(w->in.packet.family, NODE_IPV4);

	if (!node)
		return 0;

	w->out.backend.addr = *node;
	w->out.backend.port = bpf_htons(DISCARD_PORT);
	w->out.backend.flags = BACKEND_LOCAL;
	return 1;
}

/*
 * Chooses a backend for the flow of w->in.key, or the refusing one. Sets w->out.backend and
 * w->scratch.frontend. Returns BALANCE_DONE, BALANCE_NO_SERVICE or the counter of a drop.
 */
__noinline int balance_choose(struct __sk_buff *skb, int link)
{
	int outside = link == LINK_UNDERLAY;
	struct work *w = work_get();
	__u64 client;

	if (!w)
		return BALANCE_NO_SERVICE;

	client = affinity_client(&w->in.key.src);
	switch (backend_choose(
		&w->scratch.frontend_key, client, outside, &w->scratch.frontend, &w->out.backend)) {
	case CHOICE_NO_SERVICE:
		return BALANCE_NO_SERVICE;

	case CHOICE_UNSTEADY:
		return COUNT_PACKET_UNSTEADY;

	case CHOICE_NO_BACKEND:
		if (!balance_admits(w, link))
			return COUNT_PACKET_SOURCE;
		if (link == LINK_UNDERLAY && w->scratch.frontend.flags & FRONTEND_DROP)
			return COUNT_PACKET_LOCAL;
		if (!backend_set_refusing(w))
			return COUNT_PACKET_ADDRESS;
		service_refuse(
			skb, COUNT_PACKET_REFUSED, w->in.has_ethernet ? BASE_DATA : BASE_NETWORK);
		return BALANCE_DONE;

	default:
		if (!balance_admits(w, link))
			return COUNT_PACKET_SOURCE;
		return BALANCE_DONE;
	}
}

/*
 * Returns what a forward entry keeps once w->out.backend was found to be a member of the frontend
 * f. The backend is in it, since a copy of an entry may have the member of another entry.
 */
static __always_inline __u32 balance_member(const struct work *w, const struct frontend *f)
{
	const struct backend *b = &w->out.backend;

	return (__u32)f->revision ^ b->addr.word[2] ^ b->addr.word[3] ^ b->port;
}

/*
 * Makes the flow of w->in.key, if its destination is a service: chooses a backend and stores all
 * entries. Sets w->out.entry to the forward entry. Returns BALANCE_DONE, BALANCE_NO_SERVICE or the
 * counter of a drop.
 */
__noinline int balance_new(struct __sk_buff *skb, __u32 now, int link)
{
	int snat = 0, why = BALANCE_NO_SERVICE;
	struct work *w = work_get();

	if (!w)
		return BALANCE_NO_SERVICE;

	frontend_key_set(w, link);
	for (int i = 0; i < BALANCE_TRIES; i++) {
		why = balance_choose(skb, link);
		if (why != BALANCE_DONE)
			return why;
		affinity_remember(&w->scratch.frontend, affinity_client(&w->in.key.src),
			link == LINK_UNDERLAY, &w->out.backend);

		/*
		 * A pod's packet to another node keeps its source. Other packets to another node
		 * need SNAT, and so does hairpin: a client whose backend is itself.
		 */
		snat = (link != LINK_POD && !(w->out.backend.flags & BACKEND_LOCAL)) ||
		       same_addr(&w->out.backend.addr, &w->in.key.src);
		w->out.flags = link == LINK_UNDERLAY ? route_both_ways(skb) : 0;

		why = entries_store(now, i < BALANCE_FREE ? STORE_NEW : STORE_URGENT, snat);
		if (why != COUNT_PACKET_PORT)
			break;
		/* The client has a flow to that backend, with that port, by another service. */
	}
	if (why != BALANCE_DONE)
		return why;

	entry_set(w, &w->out.backend.addr, w->out.backend.port,
		FLOW_FORWARD | w->out.flags | (snat ? FLOW_SNAT : 0), now);
	if (w->scratch.frontend.count)
		w->out.entry.member = balance_member(w, &w->scratch.frontend);
	if (flow_insert(&w->in.key, &w->out.entry)) {
		/* Another processor made the flow meanwhile. All its packets go to one backend. */
		if (!flow_read(&w->in.key, &w->out.entry))
			return COUNT_PACKET_PORT;
	} else if (w->out.backend.port != bpf_htons(DISCARD_PORT)) {
		service_count(
			w->in.key.protocol == PROTO_UDP ? COUNT_PACKET_UDP : COUNT_PACKET_TCP);
	}
	return BALANCE_DONE;
}

/*
 * Reports whether the backend of the UDP flow of w->in.key still replies. Its client may have been
 * silent meanwhile.
 */
static __always_inline int flow_is_answered(struct work *w, __u32 now)
{
	struct flow *reply = &w->scratch.found;

	entry_key_from_backend(w, FLOW_OUT);
	return flow_read(&w->scratch.entry_key, reply) && reply->port == w->in.key.dport &&
	       same_addr(&reply->addr, &w->in.key.dst) && !flow_expired(PROTO_UDP, reply, now);
}

/* Clears FLOW_SUSPECT of the reply entry of w->in.key. Returns its flags, or 0 without an entry. */
static __noinline __u32 reply_entry_trust(struct work *w)
{
	struct flow *f;

	entry_key_from_backend(w, FLOW_OUT);
	f = flow_read(&w->scratch.entry_key, &w->scratch.found);
	if (!f)
		return 0;

	if (w->scratch.found.flags & FLOW_SUSPECT)
		__sync_fetch_and_and(&f->flags, ~FLOW_SUSPECT);
	return w->scratch.found.flags;
}

/*
 * Reports whether the UDP flow of w->in.key, with the forward entry w->out.entry, may stay with
 * w->out.backend. While the service does not change, that takes one look-up of the frontend. It is
 * not inlined, so that its loop takes no stack of the functions that make flows.
 */
__noinline int balance_may_stay(int link)
{
	struct work *w = work_get();
	struct frontend *now;

	if (!w)
		return 0;

	frontend_key_set(w, link);
	now = frontend_lookup(&w->scratch.frontend_key);
	if (now && w->out.entry.member == balance_member(w, now))
		return 1;

	if (!frontend_has_backend(&w->scratch.frontend_key, &w->scratch.frontend,
		    &w->out.backend.addr, w->out.backend.port))
		return 0;

	w->out.entry.member = balance_member(w, &w->scratch.frontend);
	return 1;
}

/*
 * Reports whether the client's packet w->in begins a new flow, other than the flow of its forward
 * entry, whose copy f is w->out.entry. Sets w->out.backend to the backend of f, and the member of a
 * UDP flow.
 */
static __always_inline int balance_is_new(struct work *w, const struct flow *f, __u32 now, int link)
{
	__u32 flags = f->flags;

	if (w->in.key.protocol == PROTO_TCP && !tcp_opens(w->in.tcp_flags))
		return 0;

	w->out.backend.addr = f->addr;
	w->out.backend.port = f->port;

	if (w->in.key.protocol == PROTO_UDP) {
		if (flow_expired(PROTO_UDP, f, now) && !flow_is_answered(w, now))
			return 1;
		return !balance_may_stay(link);
	}

	/* The client opens a connection by the service, so the suspicion no longer holds. */
	flags |= reply_entry_trust(w) & (FLOW_RST | FLOW_REPLIED);
	return flags & FLOW_CLOSING || flow_timed_out(PROTO_TCP, flags, f->used, now);
}
